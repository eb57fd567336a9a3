"""The folder that all hosts of a run share: paths, records, publishing, locks and the swap."""
