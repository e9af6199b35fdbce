"""The parts of a worker. Async only: what waits is not twinned."""
