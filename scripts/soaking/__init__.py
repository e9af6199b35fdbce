"""The parts of `scripts/soak.py`: a crew of processes, faults, a log of what happened, and the checks of it."""
