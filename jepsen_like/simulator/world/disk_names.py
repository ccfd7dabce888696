"""The names of a simulated disk: path → inode, with an index of each folder.

A disk has two of these, for the page cache and for the durable state, and folders are listed far more often than names
change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from .inode import Inode


class Names(Mapping[str, Inode | None]):
    """A map from paths to inodes. None is a folder; the root is the folder `""`, which always exists.

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
        """Return the inode; None for a folder or an unknown path."""
        return self._named.get(path, default)

    def change(self, added: Mapping[str, Inode | None], removed: Iterable[str]) -> None:
        """Remove these names, whether they exist or not; then add these, replacing others with the same paths."""
        for path in removed:
            if path in self._named:
                del self._named[path]
                self._inside[path.rpartition("/")[0]].pop(path)
        for path, named in added.items():
            self._named[path] = named
            if path:
                self._inside.setdefault(path.rpartition("/")[0], {})[path] = None

    def inside(self, folder: str) -> Iterable[str]:
        """Return the paths in a folder, without those in its subfolders."""
        return self._inside.get(folder, ())

    def below(self, folder: str) -> list[str]:
        """Return all paths below a folder, sorted."""
        found = []
        for path in self.inside(folder):
            found += [path, *self.below(path)]
        return sorted(found)
