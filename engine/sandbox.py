"""Where chat templates run: jinja2's sandbox with what Hugging Face's templates use, and with bounds."""

from __future__ import annotations

import json
from datetime import datetime
from threading import local
from time import monotonic
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

TIME_LIMIT_S = 5.0
"""Seconds after which a template that still loops is stopped."""
SIZE_LIMIT = 1_000_000
"""Characters, elements or bits that a template may make by one multiplication."""


class _Names(Namespace):
    """jinja2's ``namespace``, but for names that Python itself gives a meaning to."""

    def __init__(*args: Any, **values: Any) -> None:
        self, *more = args
        Namespace.__init__(self)
        for name, value in dict(*more, **values).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"{name!r} cannot be set")
        super().__setitem__(name, value)


class _Generation(Extension):
    """``{% generation %}``, which marks the model's own words for training, and says nothing here."""

    tags = {"generation"}  # noqa: RUF012 - the base class has it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """What Hugging Face's templates may use, with no way to a file, a module or code, and an end to loops."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self._rendering = local()
        self.filters["tojson"] = _to_json
        self.globals |= {"raise_exception": _refuse, "strftime_now": _now, "namespace": _Names}
        del self.globals["lipsum"]  # writes as much as it is asked for

    def template(self, name: str, source: str) -> Template:
        """A template each of whose loops' turns and macros' calls asks first whether there is time left."""
        tree = self.parse(source, name)
        looping: list[nodes.For | nodes.Macro] = [*tree.find_all(nodes.For), *tree.find_all(nodes.Macro)]
        for node in looping:
            ask = nodes.Call(nodes.EnvironmentAttribute("ask"), [], [], None, None, lineno=node.lineno)
            node.body.insert(0, nodes.ExprStmt(ask, lineno=node.lineno))
            if isinstance(node, nodes.For) and node.test is not None:
                node.test = nodes.And(ask, node.test, lineno=node.lineno)
        return self.template_class.from_code(self, self.compile(tree, name), self.make_globals(None))

    def begin(self) -> None:
        """A rendering of this thread's begins."""
        self._rendering.end = monotonic() + TIME_LIMIT_S

    def ask(self) -> bool:
        """True; raises ``TemplateError`` when this thread's rendering has taken its time."""
        if monotonic() > self._rendering.end:
            raise TemplateError(f"it ran for more than {TIME_LIMIT_S:g} s")
        return True

    def call_filter(self, *args: Any, **values: Any) -> Any:
        """What a list's filters (``map``) do with each element."""
        return self.ask() and super().call_filter(*args, **values)

    def call_test(self, *args: Any, **values: Any) -> Any:
        """What a list's tests (``select``) ask of each element."""
        return self.ask() and super().call_test(*args, **values)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """A product or a power, unless it is out of all proportion."""
        if isinstance(left, int) and isinstance(right, int):
            size = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        else:
            sized = [(one, times) for one, times in ((left, right), (right, left)) if hasattr(one, "__len__")]
            size = max((len(one) * times for one, times in sized if isinstance(times, int)), default=0)
        if size > SIZE_LIMIT:
            raise TemplateError(f"a result of {size} characters, elements or bits")
        return super().call_binop(context, operator, left, right)


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


# Not all of json.dumps' arguments: its ``default`` would be called behind the sandbox's back.
def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
