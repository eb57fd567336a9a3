"""A LeRobot dataset on disk: formats, scan, findings, check and statistics."""
