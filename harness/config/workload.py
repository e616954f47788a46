"""Checks of the user's own training (`workload`): which keys apply to it, its command, its placeholders."""

from __future__ import annotations

import ast
import itertools
import math
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from harness.config.schema import Config
from harness.config.workload_schema import Kind, ProcessesPerNode, Workload
from harness.core.errors import UserError
from harness.core.launchers import MPIRUN
from harness.core.system.secret_names import PLACEHOLDER
from harness.core.workload import launchers, patterns, templates
from harness.core.workload.spec import OWN

_INTERPRETER = re.compile(r"python[\d.]*|(ba|da|z|k)?sh|julia|Rscript|perl")
# Keys that apply to a training that the harness knows nothing of, each with all keys below it. All others are about
# networks of the catalogue.
APPLY = (
    "study",
    "results",
    "workload",
    "gpus",
    "scaling",
    "batch",
    "seed",
    "repeat",
    "repeats",
    "cluster",
    "measure.warmup_steps",
    "measure.steps",
    "measure.block_steps",
    "measure.precision",
    "checkpoint.max_requeues",
    "checkpoint.max_restarts",
    "data.root",
    "heartbeat",
    "retry",
    "wait",
    "pack",
    "budget_node_hours",
    "plan_only",
)
# Groups whose choices also hold other keys.
GROUPS = ("measure", "experiment")
LAUNCHERS = (launchers.HARNESS, OWN, *launchers.PER_NODE, MPIRUN)
PYTHON = re.compile(r"(.*/)?python[\d.]*")
# -I and -E, alone or among other letters.
ISOLATED = re.compile(r"-[A-Za-z]*[IE][A-Za-z]*")
# Placeholders of workload.samples_per_step; the others are texts.
NUMBERS = ("batch_per_gpu", "global_batch", "gpus", "nodes", "gpus_per_node", "seed", "repeat")
OPERATORS: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


def check_keys(given: Mapping[str, str], kind: Kind) -> None:
    """Raise UserError for a key about networks of the catalogue.

    Args:
        given: keys that the command line or an experiment names -> where, for the message.
        kind: of the workload.
    """
    for key, where in given.items():
        if key not in GROUPS and not any(key == name or key.startswith(f"{name}.") for name in APPLY):
            raise UserError(
                f"{where} does not apply to workload={kind.name}: it is about networks of the catalogue; leave it out "
                f"(options of your training follow `--`). Keys that apply: {', '.join(APPLY)}"
            )


def with_command(config: Config, command: list[str]) -> Config:
    """Return the point with what followed `--` as its command. Raises UserError."""
    workload = config.workload
    if workload.kind is Kind.catalog:
        raise UserError("a command after `--` needs workload=script (Python) or workload=command (any program)")
    if workload.command:
        raise UserError(
            f"the command is given twice, after `--` and as workload.command={workload.command}; leave one of "
            "the two out"
        )
    if not command:
        raise UserError(f"nothing follows `--`: write your training's command there, such as {_example(workload)}")
    return replace(config, workload=replace(workload, command=command))


def check(config: Config) -> None:
    """Raise UserError for the first mistake in `workload`."""
    workload = config.workload
    if workload.kind is Kind.catalog:
        for field in fields(Workload):
            if getattr(workload, field.name) != getattr(Workload(), field.name):
                raise UserError(
                    f"workload.{field.name} needs workload=script (Python) or workload=command (any program)"
                )
        return
    if config.measure.evaluate_every_samples:
        raise UserError(
            f"measure.evaluate_every_samples={config.measure.evaluate_every_samples} does not apply to "
            f"workload={workload.kind.name}, which the harness cannot evaluate; take another choice of measure="
        )
    _check_launcher(workload, config.cluster.container.runtime)
    _check_command(workload)
    _check_params(workload)
    _check_placeholders(workload)
    _check_steps(workload)
    if workload.name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}", workload.name):
        raise UserError(
            f"workload.name='{workload.name}' becomes part of folder names: use at most 60 letters, digits, "
            "'.', '_' and '-'"
        )
    if not workload.unit.strip():
        raise UserError("workload.unit is empty: name what workload.samples_per_step counts, such as samples or tokens")
    if config.checkpoint.max_requeues != 1 and not workload.resume_args:
        raise UserError(
            f"checkpoint.max_requeues={config.checkpoint.max_requeues} needs workload.resume_args: without them, a "
            "requeued run starts from step 0 and reaches the wall limit again"
        )


def name(workload: Workload) -> str:
    """Display name: workload.name, the script's without suffix, the module, or the program; of an interpreter, what it
    runs."""
    if workload.name is not None:
        return workload.name
    words = workload.command[0].split() if workload.shell else workload.command
    if workload.kind is Kind.script:
        derived = words[1] if words[0] == "-m" else Path(words[0]).stem
    else:
        derived = Path(words[0]).name
        after = itertools.dropwhile(lambda word: word.startswith("-") and word != "-m", words[1:])
        if _INTERPRETER.fullmatch(derived) and (run := next(after, None)):
            derived = next(after, run) if run == "-m" else Path(run).stem
    return re.sub(r"[^A-Za-z0-9._-]+", "_", derived).lstrip("._-")[:60] or workload.kind.name


def processes_per_node(workload: Workload) -> ProcessesPerNode:
    default = ProcessesPerNode.node if workload.launcher == OWN else ProcessesPerNode.gpu
    return workload.processes_per_node or default


def samples_per_step(workload: Workload, values: Mapping[str, Any]) -> int:
    """Evaluate workload.samples_per_step. values: of NUMBERS. Raises UserError."""
    given = f"workload.samples_per_step={workload.samples_per_step}"
    numbers = {key: value for key, value in {**values, **workload.params}.items() if _is_number(value)}
    # Placeholders may be written with or without braces.
    text = workload.samples_per_step.replace("{", "(").replace("}", ")")
    try:
        found = _evaluate(ast.parse(text.strip(), mode="eval").body, numbers)
    except KeyError as error:
        raise UserError(f"{given}: there is no number '{error.args[0]}'; valid are {', '.join(numbers)}") from None
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise UserError(f"{given}: give a number, or an expression of + - * / // and {', '.join(numbers)}") from None
    except (ZeroDivisionError, OverflowError) as error:
        raise UserError(f"{given}: {error}") from None
    if not math.isfinite(found) or found < 1 or found != int(found):
        raise UserError(f"{given} is {found:g} with gpus={values['gpus']}: give a whole number of at least 1")
    return int(found)


def _evaluate(node: ast.expr, numbers: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant) and _is_number(node.value):
        return node.value
    if isinstance(node, ast.Name):
        return numbers[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_evaluate(node.left, numbers), _evaluate(node.right, numbers))
    raise ValueError


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_launcher(workload: Workload, runtime: str | None) -> None:
    """runtime: of the container."""
    given, per_node = f"workload.launcher={workload.launcher}", processes_per_node(workload) is ProcessesPerNode.node
    if workload.launcher not in LAUNCHERS:
        raise UserError(f"{given}: there are {', '.join(LAUNCHERS)}")
    if workload.launcher == OWN and not per_node:
        raise UserError(
            "workload.processes_per_node=gpu with workload.launcher=own: the harness starts the command once per node, "
            "and it starts the rest; leave processes_per_node out"
        )
    if workload.launcher in launchers.PER_NODE and workload.kind is Kind.command:
        raise UserError(
            f"{given} starts Python scripts: take workload=script, or workload.launcher=own and write "
            f"{workload.launcher} with its options in the command"
        )
    if workload.launcher in launchers.PER_NODE and per_node:
        raise UserError(
            f"workload.processes_per_node=node with {given}, which starts one process per GPU: leave "
            "processes_per_node out, or take workload.launcher=harness or mpirun"
        )
    if workload.launcher == MPIRUN and runtime == "pyxis":
        raise UserError(
            f"{given} is not supported with cluster.container.runtime=pyxis, which makes each rank a step of its own: "
            "take apptainer, or workload.launcher=harness"
        )


def _check_command(workload: Workload) -> None:
    kind, command = workload.kind, workload.command
    if not command or not command[0].strip():
        raise UserError(
            f"workload={kind.name} needs your training's command: write it after `--`, such as {_example(workload)}, "
            "or set workload.command in a file"
        )
    if workload.python is not None:
        _check_python(workload)
    if workload.shell:
        if kind is Kind.script:
            raise UserError("workload.shell=true needs workload=command: a script is started without a shell")
        if len(command) > 1:
            raise UserError(
                f"workload.shell=true takes one text; put the {len(command)} words of the command in quotes"
            )
    interpreter = not workload.shell and PYTHON.fullmatch(command[0])
    options = list(_options(command[1:] if interpreter else command))
    isolated = next((option for option in options if ISOLATED.fullmatch(option)), None)
    if isolated and (kind is Kind.script or (interpreter and workload.pattern is None)):
        raise UserError(_refused(isolated))
    if kind is Kind.command:
        return
    if interpreter:
        raise UserError(
            f"with workload=script the command starts with the script, not with '{command[0]}': leave it out, and name "
            "the interpreter with workload.python"
        )
    if command[0].startswith("-") and command[0] != "-m":
        raise UserError(
            f"with workload=script the command starts with the script, or with -m and a module, not with '{command[0]}'"
        )
    if command[0] == "-m" and (len(command) == 1 or not re.fullmatch(r"\w+(\.\w+)*", command[1])):
        raise UserError("-m needs the name of a module, such as -m mypackage.train")


def _options(words: Iterable[str]) -> Iterable[str]:
    """The options before the first other word, as Python reads those before its script."""
    for word in words:
        if not word.startswith("-") or word in ("-m", "-c", "-"):
            return
        yield word


def _check_python(workload: Workload) -> None:
    if workload.kind is Kind.command:
        raise UserError("workload.python has no effect with workload=command: the command names its own program")
    _, *words = str(workload.python).split(" -")
    for option in (f"-{word.split()[0]}" for word in words if word.split()):
        if ISOLATED.fullmatch(option):
            raise UserError(_refused(option))
        raise UserError(f"workload.python={workload.python}: give the interpreter without options such as {option}")


def _refused(option: str) -> str:
    return (
        f"python {option} is not supported: Python then ignores PYTHONPATH, through which the harness measures the "
        "steps; leave it out"
    )


def _check_params(workload: Workload) -> None:
    for key, value in workload.params.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", str(key)):
            raise UserError(
                f"workload.params.{key}: a name has letters, digits and '_', and does not begin with a digit"
            )
        if key in templates.NAMES:
            raise UserError(f"workload.params.{key}: {{{key}}} is a placeholder already; take another name")
        if not isinstance(value, (str, bool, int, float)):
            raise UserError(f"workload.params.{key}={value}: give a number, a text, true or false")


def _check_placeholders(workload: Workload) -> None:
    texts = [*workload.command, *workload.resume_args]
    secret = [name for text in texts for name in templates.placeholders(text) if PLACEHOLDER.fullmatch(name)]
    known = dict.fromkeys([*templates.NAMES, *workload.params, *secret], "")
    for where, texts in (("the command", workload.command), ("workload.resume_args", workload.resume_args)):
        for text in texts:
            try:
                templates.expand(text, known)
            except templates.UnknownPlaceholder as error:
                raise UserError(f"{where} has {text!r}: {error}") from None


def _check_steps(workload: Workload) -> None:
    if min(workload.probe_steps, workload.trace) < 0 or not 0 < workload.probe_limit <= 10:
        raise UserError(
            f"workload.probe_steps={workload.probe_steps}, workload.trace={workload.trace} and "
            f"workload.probe_limit={workload.probe_limit:g}: give at least 0 steps, and a share of the run's time "
            "above 0 and at most 10"
        )
    without = "workload.pattern" if workload.pattern is not None else None if workload.stop else "workload.stop=false"
    for key in ("probe_steps", "trace", "probe_limit") if without else ():
        if (value := getattr(workload, key)) not in (0, getattr(Workload(), key)):
            raise UserError(
                f"workload.{key}={value:g} has no effect with {without}, which takes no further steps after the timed "
                "ones; leave one of the two out"
            )
    if workload.pattern is None:
        return
    if workload.step is not None:
        raise UserError(
            f"workload.step={workload.step} has no effect with workload.pattern, which takes the steps from the "
            "output; leave one of the two out"
        )
    patterns.parse(workload.pattern, workload.unit)


def _example(workload: Workload) -> str:
    program = "train.py" if workload.kind is not Kind.command else "./train"
    return f"`-- {program} --batch-size {{batch_per_gpu}}`"
