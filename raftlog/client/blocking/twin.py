"""Blocking twins of asyncio classes: the same names, arguments, results and errors, from any thread.

A twin names its asyncio class, and gets a member for each public one of it, which runs on the thread of the object:

* a coroutine method returns when the coroutine has ended (`_run`);
* an asynchronous generator becomes one that waits for each item (`_run`);
* a plain method (`_do`) and a property (`_look`) run between the thread's other work.

Only what is different by nature is written in the twin: it stands in place of the generated member, and takes over the
docstring and, for its `*args` and `**kwargs`, the parameters of the asyncio one. Type checkers see `raftlog/sync.pyi`,
which is generated from the finished classes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import ExitStack
from functools import wraps
from types import FunctionType
from typing import Any, ClassVar, Self, TypeVar

from .loop_thread import LoopThread

Result = TypeVar("Result")


class Twin:
    """An asyncio object on a thread with an event loop."""

    _twin_of: ClassVar[type]

    def __init_subclass__(
        cls, of: type | None = None, names: Collection[str] | None = None, without: Collection[str] = ()
    ) -> None:
        """`of`: the asyncio class, unless this is a program's own subclass.

        `names`: the members to generate, by default all public ones; `without`: except these.
        """
        super().__init_subclass__()
        if of is None:
            return
        cls._twin_of = of
        for name, member in inspect.getmembers_static(of):
            if name in cls.__dict__:
                take_over(cls.__dict__[name], member)
            elif name in names if names is not None else not (name.startswith("_") or name in without):
                setattr(cls, name, _twin(member))

    def __init__(self, wrapped: Any, thread: LoopThread) -> None:
        self._wrapped = wrapped
        self._thread = thread

    def _run(self, call: Callable[[], Coroutine[Any, Any, Result]], timeout: float | None = None) -> Result:
        """Run a coroutine to its end."""
        return self._thread.run(call, timeout)

    def _do(self, call: Callable[[], Result]) -> Result:
        """Run a plain call that may change the object."""
        return self._look(call)

    def _look(self, look: Callable[[], Result]) -> Result:
        """Return what `look` returns; directly once nothing else runs on the thread."""
        if self._thread.closed:
            return look()

        async def run() -> Result:
            return look()

        return self._thread.run(run)

    def _end(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the last coroutine, and end the thread. Without effect if it has ended."""
        if not self._thread.closed:
            try:
                self._run(last)
            finally:
                self._thread.stop()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.push(self)
            self._run(self._wrapped.__aenter__)
            stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._end(lambda: self._wrapped.__aexit__(kind, *error))


def _twin(member: Any) -> Any:
    """Return the blocking twin of one member."""
    if isinstance(member, property):
        assert member.fget is not None
        return property(_calling(member.fget, "_look"))
    if inspect.isasyncgenfunction(member):
        return _iterating(member)
    if inspect.iscoroutinefunction(member):
        return _calling(member, "_end" if member.__name__ == "close" else "_run")
    return _calling(member, "_do")


def _calling(method: Callable[..., Any], by: str) -> Callable[..., Any]:
    @wraps(method)
    def call(own: Twin, /, *args: Any, **kwargs: Any) -> Any:
        return getattr(own, by)(lambda: method(own._wrapped, *args, **kwargs))

    call.__doc__ = _without_await(method)
    return call


def _iterating(method: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
    @wraps(method)
    def iterate(own: Twin, /, *args: Any, **kwargs: Any) -> Iterator[Any]:
        items = method(own._wrapped, *args, **kwargs)
        while True:
            try:
                yield own._run(items.__anext__)
            except StopAsyncIteration:
                return

    iterate.__doc__ = _without_await(method)
    return iterate


def take_over(written: Any, member: Any) -> None:
    """Give a member that is written in the twin the docstring and parameters of the asyncio one."""
    if not isinstance(written, FunctionType):
        return
    written.__doc__ = written.__doc__ or _without_await(member)
    shown = inspect.signature(written)
    others = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = {name: one for name, one in shown.parameters.items() if one.kind not in others}
    if len(named) < len(shown.parameters):
        parameters = {**inspect.signature(member).parameters, **named}
        written.__signature__ = shown.replace(parameters=list(parameters.values()))  # type: ignore[attr-defined]


def _without_await(member: Any) -> str:
    """Return the docstring of an asyncio member for programs without an event loop."""
    return (member.__doc__ or "").replace("async with", "with").replace("`await ", "`")
