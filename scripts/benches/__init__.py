"""The cases of ``scripts/bench.py``, a module each, and the kit that they share."""
