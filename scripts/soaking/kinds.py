"""What the tasks and schedules of a soak are like, for those who check them."""

from __future__ import annotations

#: Seconds between two fires of each schedule.
SCHEDULES = {"tick": 8, "alone": 8, "minute": 60}
#: Those whose fires wait while a job of theirs is queued or running.
HELD_BACK = frozenset({"alone"})
#: Their bodies end their job in complete_tx, with an effect.
PAYMENTS = frozenset({"pay", "pay_blocking"})
#: Plain functions, which nobody can stop.
BLOCKING = frozenset({"blocking", "pay_blocking", "minute"})

#: Limits that stay as they are: max_running of each key.
STEADY = {"pair": 2, "single": 1}
#: Key, max_starts and window in seconds.
RATED = ("rated", 15, 5)
#: Keys whose limits are set, lowered and cleared while their jobs run.
CHANGING = ("wide", "narrow")
