"""The instants of a schedule: a cron expression on a zone's wall clock, or a plain interval. Pure.

``Cron`` and ``Every`` answer the same two questions, for aware instants:

- ``latest(now, not_before)``: the newest fire from ``not_before`` to ``now``, both included, or None;
- ``next_after(now)``: the first fire later than ``now``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from akadze._cron_fields import CronFields, parse_fields
from akadze.errors import AkadzeError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = timedelta(days=1)

# The calendar repeats after 400 years.
_CALENDAR_START = date(2000, 1, 1)
_CALENDAR_END = date(2400, 1, 1)

# Around a day: far enough before it to see the start of a gap that reaches into it (the longest, a skipped day, is 24
# hours), and close enough together that no zone changes its clock twice in between.
_PROBES = tuple(timedelta(hours=5 * step) for step in range(-5, 6))

_SHORTEST = timedelta(seconds=1)
_LONGEST = timedelta(days=36500)

# They name files of the zone database that are no zones, or count leap seconds, or mean whatever the host is set to.
_NO_ZONES = ("localtime", "posixrules", "posix/", "right/")


class Cron:
    """A cron expression of five fields on the wall clock of ``timezone``, UTC by default.

    Only the hour field decides what a change of the clock does. A fixed hour (one that does not start with ``*``): each
    matching wall time fires once, inside a gap shifted by the gap, in a repeated hour in the first pass only. An hour
    that starts with ``*`` follows the real clock: both passes, and nothing for minutes that do not exist.

    Raises AkadzeError for an expression that cannot be read or can never fire, and for an unknown zone.
    """

    __slots__ = ("_days", "_fields", "_times", "_zone", "expression", "timezone")

    def __init__(self, expression: str, timezone: str | None) -> None:
        self.expression = expression
        self.timezone = timezone
        self._fields: CronFields = parse_fields(expression)
        self._zone = _zone(timezone)
        self._times = [
            timedelta(hours=hour, minutes=minute)
            for hour in sorted(self._fields.hours)
            for minute in sorted(self._fields.minutes)
        ]
        # The fires of the UTC days that were asked for last: a pass asks for the same day again and again.
        self._days: dict[date, list[datetime]] = {}
        if self._matching_date(_CALENDAR_START, forward=True, end=_CALENDAR_END) is None:
            raise AkadzeError(
                f"the cron expression {expression!r} can never fire: no month that it names has a day that it names, "
                "change its day or its month"
            )

    def __repr__(self) -> str:
        return f"Cron({self.expression!r}, {self.timezone!r})"

    def latest(self, now: datetime, not_before: datetime) -> datetime | None:
        day, first = _utc_date(now), _utc_date(not_before)
        fires = self._fires_of(day)
        found = bisect_right(fires, now)
        while not found and day > first:
            # The fires of a UTC day come from the wall dates of the day before, the day itself and the day after.
            matching = self._matching_date(day, forward=False, end=first - _DAY)
            if matching is None:
                return None
            day = min(day - _DAY, matching + _DAY)
            fires = self._fires_of(day)
            found = len(fires)
        return fires[found - 1] if found and fires[found - 1] >= not_before else None

    def next_after(self, now: datetime) -> datetime:
        day = _utc_date(now)
        fires = self._fires_of(day)
        found = bisect_right(fires, now)
        while found == len(fires):
            matching = self._matching_date(day, forward=True, end=date.max)
            if matching is None:
                raise AkadzeError(f"the cron expression {self.expression!r} has no fire after {now.isoformat()}")
            day = max(day + _DAY, matching - _DAY)
            fires = self._fires_of(day)
            found = 0
        return fires[found]

    def _matching_date(self, day: date, *, forward: bool, end: date) -> date | None:
        """Return the first matching wall date from ``day`` on, in one direction and not beyond ``end``."""
        months, matches = self._fields.months, self._fields.matches
        step = _DAY if forward else -_DAY
        while (day <= end) if forward else (day >= end):
            if day.month not in months:
                # To the first day of the month after, or to the last one of the month before.
                day = (day.replace(day=28) + 4 * _DAY).replace(day=1) if forward else day.replace(day=1) - _DAY
            elif matches(day):
                return day
            else:
                day += step
        return None

    def _fires_of(self, day: date) -> list[datetime]:
        """Return the fires of one UTC day."""
        fires = self._days.get(day)
        if fires is None:
            if len(self._days) >= 4:
                self._days.clear()
            fires = self._days[day] = self._find_fires(day)
        return fires

    def _find_fires(self, day: date) -> list[datetime]:
        start = datetime(day.year, day.month, day.day, tzinfo=UTC)
        if not any(self._fields.matches(day + offset) for offset in (-_DAY, timedelta(0), _DAY)):
            return []
        offsets = {(start + probe).astimezone(self._zone).utcoffset() or timedelta(0) for probe in _PROBES}
        if len(offsets) == 1:
            # The clock does not change: wall time and UTC differ by one number, shown as if the wall time were UTC.
            offset = offsets.pop()
            return [wall - offset for wall in self._matching_walls(start + offset, start + offset + _DAY)]
        end = start + _DAY
        fires: set[datetime] = set()
        for wall in self._matching_walls(start + min(offsets), end + max(offsets)):
            # fold=0 is the first pass of a repeated hour; in a gap it counts on with the offset from before the gap,
            # which is the shift by the gap.
            local = wall.replace(tzinfo=self._zone)
            if self._fields.follows_clock:
                passes = (local.astimezone(UTC), local.replace(fold=1).astimezone(UTC))
                fires.update(fire for fire in passes if fire.astimezone(self._zone).replace(tzinfo=UTC, fold=0) == wall)
            else:
                fires.add(local.astimezone(UTC))
        return sorted(fire for fire in fires if start <= fire < end)

    def _matching_walls(self, start: datetime, end: datetime) -> list[datetime]:
        walls: list[datetime] = []
        midnight = start.replace(hour=0, minute=0, second=0, microsecond=0)
        while midnight < end:
            if self._fields.matches(midnight.date()):
                first = bisect_left(self._times, start - midnight)
                last = bisect_left(self._times, end - midnight)
                walls += [midnight + time for time in self._times[first:last]]
            midnight += _DAY
        return walls


class Every:
    """An interval: it fires at the multiples of the interval since the Unix epoch.

    So each process finds the same instants, whenever it started. Raises AkadzeError for what is no timedelta, or is
    shorter than a second or longer than 36,500 days.
    """

    __slots__ = ("interval",)

    def __init__(self, interval: timedelta) -> None:
        if not isinstance(interval, timedelta):
            raise AkadzeError(f"every is {type(interval).__name__}: pass a timedelta, such as timedelta(minutes=5)")
        if not _SHORTEST <= interval <= _LONGEST:
            raise AkadzeError(f"every is {interval}: pass an interval from one second to 36,500 days")
        self.interval = interval

    def __repr__(self) -> str:
        return f"Every({self.interval!r})"

    def latest(self, now: datetime, not_before: datetime) -> datetime | None:
        fire = _EPOCH + (now - _EPOCH) // self.interval * self.interval
        return fire if fire >= not_before else None

    def next_after(self, now: datetime) -> datetime:
        return _EPOCH + ((now - _EPOCH) // self.interval + 1) * self.interval


def _utc_date(instant: datetime) -> date:
    return instant.astimezone(UTC).date()


def _zone(timezone: str | None) -> ZoneInfo:
    if timezone is None:
        return ZoneInfo("UTC")
    if not isinstance(timezone, str):
        raise AkadzeError(
            f"timezone is {type(timezone).__name__}: pass the name of an IANA zone, such as 'Europe/Paris'"
        )
    try:
        if timezone.startswith(_NO_ZONES):
            raise ZoneInfoNotFoundError(timezone)
        return ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        # ValueError: a path that leads out of the zone database. OSError: the name of one of its directories.
        raise AkadzeError(
            f"timezone {timezone!r} is unknown: pass the name of an IANA zone, such as 'Europe/Paris', or none for UTC"
        ) from error
