"""`fedproc federate`: sites on other machines train together."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedproc.cli.strict import Parser
from fedproc.errors import Diverged, Failed, InputError
from fedproc.federate.names import require_nvflare

if TYPE_CHECKING:
    from rich.console import Console

NOT_HERE = (
    "data", "data_dir", "predictions", "clients", "partition", "beta", "classes_per_client", "partition_file",
    "min_size", "device", "executor", "lanes", "client_memory", "keep_clients",
    "checkpoint_every",
)  # fmt: skip


def add(commands: Any, plugins: Sequence[Path]) -> None:
    parser: Parser = commands.add_parser("federate")
    parts = parser.add_subparsers(metavar="PART", required=True, parser_class=Parser)
    _add_kits(parts)
    _add_processes(parts)
    _add_start(parts, plugins)


def _add_kits(parts: Any) -> None:
    init = parts.add_parser("init", help="make the start-up kits of a federation, with certificates")
    init.add_argument("--server", required=True, help="host name or IP address that sites reach the server by")
    init.add_argument("--port", type=int, default=8002, help="the one port that must be open; default: 8002")
    init.add_argument("--sites", nargs="+", required=True, metavar="NAME", help="names of the sites")
    init.add_argument("--out", type=Path, default=Path("kits"), help="folder of the kits; default: kits")
    init.set_defaults(command=_init)
    add_site = parts.add_parser("add-site", help="make a kit for one more site, also while the server runs")
    add_site.add_argument("name", help="name of the site")
    add_site.add_argument("--kits", type=Path, default=Path("kits"), help="folder of `init`; default: kits")
    add_site.set_defaults(command=_add_site)
    remove = parts.add_parser("remove-site", help="take a site off the member list, also while a run is under way")
    remove.add_argument("name", help="name of the site")
    remove.add_argument("--kit", type=Path, default=Path("kits/admin"), help="the administrator's; default: kits/admin")
    remove.set_defaults(command=_remove_site)
    renew = parts.add_parser("renew", help="make new certificates and keys")
    renew.add_argument("names", nargs="+", metavar="NAME", help="sites, server or admin")
    renew.add_argument("--kits", type=Path, default=Path("kits"), help="folder of `init`; default: kits")
    renew.set_defaults(command=_renew)


def _add_processes(parts: Any) -> None:
    server = parts.add_parser("server", help="run the server, in the foreground")
    server.add_argument("kit", type=Path, help="the server's start-up kit")
    server.add_argument("--plugin", type=Path, action="append", default=[], help="file with methods of your own")
    server.set_defaults(command=_server)
    site = parts.add_parser("site", help="run a site, in the foreground")
    site.add_argument("kit", type=Path, help="the site's start-up kit")
    site.add_argument("--data", type=Path, required=True, help="image folder or CSV file; it never leaves")
    site.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N; default: auto")
    site.add_argument("--plugin", type=Path, action="append", default=[], help="file with methods of your own")
    site.add_argument(
        "--threads",
        type=int,
        help="of the CPU that training may use; default: all cores, for the simple CNN one",
    )
    site.set_defaults(command=_site)


def _fill_start(start: Parser, plugins: Sequence[Path]) -> None:
    """The flags of `start`, which are all that take long to load."""
    from fedproc.beside import FINE_TUNING_EPOCHS
    from fedproc.cli.parser import add_experiment_flags
    from fedproc.methods.plugin import all_methods

    start.add_argument("kit", type=Path, help="the administrator's start-up kit")
    group = start.add_argument_group("federation")
    group.add_argument("--out", type=Path, default=Path("runs/federation"), help="folder; default: runs/federation")
    group.add_argument("--config", type=Path, help="TOML file with the same names as the flags")
    group.add_argument("--min-sites", type=int, default=2, help="fewest good answers that make a round; default: 2")
    group.add_argument("--timeout", type=int, default=600, help="seconds that a site has for a task; default: 600")
    group.add_argument("--join-timeout", type=int, default=300, help="seconds to read the images; default: 300")
    group.add_argument("--wait", type=float, default=60.0, help="seconds to wait for sites to connect; default: 60")
    group.add_argument("--classes", nargs="+", metavar="NAME", help="classes that may occur; default: what sites have")
    group.add_argument("--server-test", help="folder of test images on the server, in folders by class")
    group.add_argument("--no-alone", action="store_true", help="do not let sites train alone for comparison")
    group.add_argument(
        "--fine-tune", metavar="EPOCHS", type=int, default=FINE_TUNING_EPOCHS,
        help="epochs of each site from the trained model on, for comparison; "
        f"default: {FINE_TUNING_EPOCHS}, 0: none",
    )  # fmt: skip
    group.add_argument("--page", metavar="[HOST:]PORT", help="also show the run on a web page; HOST: 127.0.0.1")
    group.add_argument("--open", action="store_true", help="open that page in a browser")
    add_experiment_flags(start, without=NOT_HERE, methods=all_methods(plugins))
    start.set_defaults(command=_start)


def _add_start(parts: Any, plugins: Sequence[Path]) -> None:
    words = "start a run and see it to its end; again, it attaches to it"
    parts.add_parser("start", help=words, fill=lambda start: _fill_start(start, plugins))
    status = parts.add_parser("status", help="show the server, its sites and the run under way")
    status.add_argument("kit", type=Path, help="the administrator's start-up kit")
    status.add_argument("--page", metavar="[HOST:]PORT", help="show it on a web page until interrupted")
    status.add_argument("--open", action="store_true", help="open that page in a browser")
    status.set_defaults(command=_status)
    stop = parts.add_parser("stop", help="stop the run under way after its round; `start` continues it")
    stop.add_argument("kit", type=Path, help="the administrator's start-up kit")
    stop.add_argument("--now", action="store_true", help="do not wait for the end of the round")
    stop.set_defaults(command=_stop)

    demo = parts.add_parser("demo", help="all of it on this machine, with the embedded data")
    demo.add_argument("--out", type=Path, default=Path("runs/federation-demo"), help="new folder")
    demo.add_argument("--method", default="fedproc", help="what to run; default: fedproc")
    demo.add_argument("--page", metavar="[HOST:]PORT", help="also show the run on a web page; HOST: 127.0.0.1")
    demo.add_argument("--open", action="store_true", help="open that page in a browser")
    demo.set_defaults(command=_demo)


def _demo(parsed: argparse.Namespace, console: Console) -> int:
    require_nvflare()
    from fedproc.federate import watching
    from fedproc.federate.demo import run_demo
    from fedproc.report.contents import write_report

    with watching.Watching(console, parsed.page, parsed.open) as display:
        result = run_demo(parsed.out, parsed.method, _printer(console), display, parsed.interrupt.check)
    code = _show_result(console, parsed.out / "run", result)
    page = write_report([parsed.out / "run"], parsed.out / "report", None, lambda doing: None)
    console.print(f"report: {page}", highlight=False, soft_wrap=True)
    return code


def _init(parsed: argparse.Namespace, console: Console) -> int:
    require_nvflare()
    from fedproc.federate import kits

    made = kits.init(parsed.out, parsed.server, parsed.port, parsed.sites)
    for path in made:
        console.print(f"{path}", highlight=False)
    console.print(
        f"Send each site its folder by a safe way. Keep {parsed.out / 'authority'} to yourself: whoever has it can add "
        f"sites.\nOn {parsed.server}: fedproc federate server {parsed.out / 'server'}   (port {parsed.port} open)\n"
        f"At each site, with its own kit: fedproc federate site {made[2]} --data IMAGES",
        highlight=False,
    )
    return 0


def _add_site(parsed: argparse.Namespace, console: Console) -> int:
    require_nvflare()
    from fedproc.federate import kits

    made = kits.add_site(parsed.kits, parsed.name)
    console.print(f"{made}: send it to the site; it joins runs from their next segment on", highlight=False)
    return 0


def _remove_site(parsed: argparse.Namespace, console: Console) -> int:
    require_nvflare()
    from fedproc.federate import kits
    from fedproc.federate.session import Lost, Session

    kit = kits.open_kit(parsed.kit, "admin")
    kits.remove_member(parsed.kit, parsed.name)
    console.print(f"{parsed.name} is no longer a member", highlight=False)
    try:
        with Session(kit) as session:
            session.disable(parsed.name)
            for job in session.running():
                session.ask(job, do="end")
        console.print("the server refuses it from now on; a run under way goes on without it after this round")
    except Lost as error:
        raise InputError(f"{error}; the server still lets it connect, though no run asks it: run this again") from error
    return 0


def _renew(parsed: argparse.Namespace, console: Console) -> int:
    require_nvflare()
    from fedproc.federate import kits

    for path in kits.renew(parsed.kits, parsed.names):
        console.print(f"{path}: new certificate and key in startup/; send that folder and start again", highlight=False)
    return 0


def _server(parsed: argparse.Namespace, console: Console) -> int:
    require_nvflare()
    from fedproc.federate import foreground, kits

    kit = kits.open_kit(parsed.kit, "server")
    for warning in kit.check():
        console.print(warning, highlight=False)
    foreground.run_server(kit, parsed.plugin, _printer(console), parsed.interrupt.check)
    return 0


def _site(parsed: argparse.Namespace, console: Console) -> int:
    require_nvflare()
    from fedproc.federate import foreground, kits
    from fedproc.federate.policy import read_policy

    kit = kits.open_kit(parsed.kit, "site")
    for warning in kit.check():
        console.print(warning, highlight=False)
    read_policy(kit.path)
    if not parsed.data.exists():
        raise InputError(f"--data {parsed.data}: no such folder or file")
    if parsed.threads is not None and parsed.threads < 1:
        raise InputError(f"--threads {parsed.threads}: expected at least 1")
    given_to = (kit, parsed.data, parsed.device, parsed.plugin, parsed.threads)
    foreground.run_site(*given_to, _printer(console), parsed.interrupt.check)
    return 0


def _printer(console: Console) -> Any:
    def show(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True)
        console.file.flush()

    return show


def _start(parsed: argparse.Namespace, console: Console) -> int:
    require_nvflare()
    from fedproc.cli.parser import given
    from fedproc.comparison.overrides import merged, read_toml
    from fedproc.data import FEDERATION
    from fedproc.data.names import normal
    from fedproc.experiment import Experiment
    from fedproc.federate import kits, watching
    from fedproc.federate.segment import Options
    from fedproc.federate.supervisor import Supervisor

    kit = kits.open_kit(parsed.kit, "admin")
    for warning in kit.check():
        console.print(warning, highlight=False)
    below = read_toml(parsed.config, "--config") if parsed.config else {}
    defaults = {"normalize": "measured", "smallest_class": 5}
    fixed = {"data": FEDERATION, "checkpoint_every": 1}  # sites keep few rounds of what they may have to go back to
    asked = merged(below, given(parsed))
    if asked.get("privacy"):
        defaults = {"smallest_class": 5}  # mean and deviation of pixels are not told
    experiment = Experiment(**{**defaults, **asked, **fixed})
    if experiment.privacy is not None and parsed.classes is None:
        raise InputError("--classes: needed by a private run, whose sites do not tell which classes they have")
    if experiment.privacy is not None and parsed.server_test is None:
        raise InputError("--server-test: needed by a private run, whose sites do not tell how they fare")
    following = frozenset({"batch_size", "epochs"} - set(asked))
    if experiment.method == "central":
        raise InputError("--method central: gathers all images in one place, which is what a federation does not do")
    if experiment.attack is not None:
        raise InputError(f"--attack {experiment.attack}: is for experiments in the simulator; leave it out")
    for name in ("min_sites", "timeout", "join_timeout"):
        if getattr(parsed, name) < 1:
            raise InputError(f"--{name.replace('_', '-')} {getattr(parsed, name)}: expected at least 1")
    if parsed.server_test is not None and experiment.val_fraction:
        raise InputError(
            f"--server-test {parsed.server_test}: not together with --val-fraction {experiment.val_fraction}, by which "
            "sites choose; leave one out"
        )
    if parsed.fine_tune < 0:
        raise InputError(f"--fine-tune {parsed.fine_tune}: expected at least 0")
    classes = None if parsed.classes is None else [normal(name) for name in parsed.classes]
    options = Options(
        min_sites=parsed.min_sites, timeout=parsed.timeout, join_timeout=parsed.join_timeout, classes=classes,
        server_test=parsed.server_test, alone=not parsed.no_alone, fine_tune=parsed.fine_tune, following=following,
    )  # fmt: skip
    with watching.Watching(console, parsed.page, parsed.open) as display:
        supervisor = Supervisor(kit, experiment, options, parsed.out, display, parsed.interrupt.check, parsed.wait)
        result = supervisor.run()
    return _show_result(console, parsed.out, result)


def _show_result(console: Console, out: Path, result: dict[str, Any]) -> int:
    """The end of a run: each site's gain, and where everything lies."""
    from fedproc.cli.tables import print_table
    from fedproc.comparison.sites import compared, site_rows
    from fedproc.report.sites import site_table
    from fedproc.runs.result import promise_kept

    if result["status"] != "finished":
        kind = Diverged if result["status"] == "diverged" else Failed
        raise kind(result["round"], result["reason"])
    if "privacy" not in result:
        print_table(console, site_table(site_rows([compared(str(result["method"]), {0: out}, {})])))
    names = {"test_accuracy": "of the kept model", "final_accuracy": "over all", "val_final_accuracy": "by validation"}
    name = next(name for name in names if name in result)
    said = f"accuracy {names[name]} {100 * float(result[name]):.2f} %, {result['rounds']} rounds"
    said += promise_kept(result)
    console.print(f"{said}; written to {out}", highlight=False)
    return 0


def _status(parsed: argparse.Namespace, console: Console) -> int:
    require_nvflare()
    from fedproc.federate import kits, watching
    from fedproc.federate.session import Session

    kit = kits.open_kit(parsed.kit, "admin")
    with Session(kit) as session:
        if not parsed.page and not parsed.open:
            watching.show_status(console, kits.members(parsed.kit), session)
            return 0
        with watching.Watching(console, parsed.page or "0", parsed.open) as display:
            while True:
                parsed.interrupt.check()
                display.show(watching.status_of(kits.members(parsed.kit), session))
                time.sleep(1.0)


def _stop(parsed: argparse.Namespace, console: Console) -> int:
    require_nvflare()
    from fedproc.federate import kits
    from fedproc.federate.session import Session

    with Session(kits.open_kit(parsed.kit, "admin")) as session:
        jobs = session.running()
        for job in jobs:
            session.ask(job, do="stop", now=parsed.now)
    console.print("nothing is under way" if not jobs else "stopping" if parsed.now else "stops after this round")
    return 0
