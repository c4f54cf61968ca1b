"""Workflow schedules: `every` and `cron`, and the next run's time.

The next run of a schedule is always in the journal, as a waiting run that is due at its time. The process that takes it
creates the run after it. So a schedule waits without a process, and runs once after downtime. The key of a
run names its time: several processes that create the same run create one.
"""

from __future__ import annotations

import datetime
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from toolway.types import Json

SCHEDULE_KEY: Final = "schedule:"  # prefix of a scheduled run's key
MIN_INTERVAL_S: Final = 1.0


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """Times at which a workflow is started: each interval since 1970, or a cron expression in a time zone."""

    every: float | None = None  # seconds
    cron: str | None = None
    timezone: str = "UTC"
    inputs: Json = {}

    def next_time(self, after: float) -> float:
        """Return the schedule's first time that is later than a given time.

        Raises `ValueError` if no later time exists.
        """
        if self.every is not None:
            return (after // self.every + 1) * self.every
        from cronsim import CronSim, CronSimError

        try:
            start = datetime.datetime.fromtimestamp(after, ZoneInfo(self.timezone))
            return float(next(CronSim(self.cron or "", start)).timestamp())
        except (ZoneInfoNotFoundError, OSError) as exc:
            raise ValueError(f"unknown time zone {self.timezone!r}") from exc
        except CronSimError as exc:
            raise ValueError(f"{self.cron!r} is not a cron expression: {exc}") from exc
        except StopIteration:
            raise ValueError(f"{self.cron!r} has no time in the next 50 years") from None
