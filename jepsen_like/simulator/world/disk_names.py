"""The names of a simulated disk: path → what it names, with each folder's contents at hand.

A disk has two of these, what the page cache shows and what is durable, and a folder is listed far more often than a
name changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from .inode import Inode


class Names(Mapping[str, Inode | None]):
    """None names a folder; the root is the folder `""`, which is always there.

    Invariant: `_inside` has each path under its folder, and nothing else.
    """

    def __init__(self, found: Mapping[str, Inode | None]) -> None:
        self._named: dict[str, Inode | None] = {"": None}
        self._inside: dict[str, dict[str, None]] = {}
        self.change(found, ())

    def __getitem__(self, path: str) -> Inode | None:
        return self._named[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)

    def __contains__(self, path: object) -> bool:
        return path in self._named

    def get(self, path: str, default: Inode | None = None) -> Inode | None:  # type: ignore[override]
        """None for a folder, and where there is nothing."""
        return self._named.get(path, default)

    def change(self, added: Mapping[str, Inode | None], removed: Iterable[str]) -> None:
        """These are gone, whether or not they were there; then these are there, in place of others of their paths."""
        for path in removed:
            if path in self._named:
                del self._named[path]
                self._inside[path.rpartition("/")[0]].pop(path)
        for path, named in added.items():
            self._named[path] = named
            if path:
                self._inside.setdefault(path.rpartition("/")[0], {})[path] = None

    def inside(self, folder: str) -> Iterable[str]:
        """The paths in a folder, without those in folders of its."""
        return self._inside.get(folder, ())

    def below(self, folder: str) -> list[str]:
        """All paths below a folder, in order."""
        found = []
        for path in self.inside(folder):
            found += [path, *self.below(path)]
        return sorted(found)
