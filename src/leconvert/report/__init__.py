"""Reports of a run, its status, and pages about runs and about a resampling benchmark.

`values.gather` reads the records of a run, or a result alone, into a `RunReport`, and
`page.write_report` turns it into HTML. `status.run_status` looks at a run for the terminal. None of
them writes to the run's work dir. There is no door: a status must not import what pages need.
"""
