"""Plain values: selection, repairs, layout and scan. No code here reads or writes files."""
