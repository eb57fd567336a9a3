"""Plain values: selection, repairs, layout and scan. Nothing here touches a disk."""
