"""Start-up kits: what each participant of a federation is given, with certificates of one authority (mutual TLS).

kits/authority/   the authority's key, to be kept by whoever adds sites and renews certificates, and nobody else
kits/server/      for the machine that everyone connects to
kits/admin/       for the person who starts runs; members.json says which sites take part
kits/NAME/        for each site
"""

from __future__ import annotations

import contextlib
import io
import ipaddress
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from fedproc.errors import InputError, RunError
from fedproc.federate import policy
from fedproc.federate.names import ADMIN, CONTROLLER, FORWARDER, ORGANISATION, PROJECT, SERVER_NAME
from fedproc.files import move, naming, sync_all, write_json

Role = Literal["server", "admin", "site"]
AUTHORITY = "authority"
RESERVED = {SERVER_NAME, "admin", AUTHORITY}
ABOUT = "fedproc.json"
MEMBERS = "members.json"
ROOT_DAYS = 5 * 365
WARN_DAYS = 30
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True)
class Kit:
    """A start-up kit that lies in a folder."""

    path: Path
    role: Role
    name: str
    host: str
    port: int

    @property
    def certificate(self) -> Path:
        return self.path / "startup" / ("server.crt" if self.role == "server" else "client.crt")

    @property
    def authority(self) -> Path:
        return self.path / "startup" / "rootCA.pem"

    def expires(self) -> datetime:
        """When its certificate ends."""
        from cryptography import x509

        try:
            return x509.load_pem_x509_certificate(self.certificate.read_bytes()).not_valid_after_utc
        except (OSError, ValueError) as error:
            raise InputError(f"{self.certificate}: not a certificate: {error}") from error

    def check(self) -> list[str]:
        """Refuse a kit that cannot work; returns what should be known."""
        from cryptography import x509
        from cryptography.exceptions import InvalidSignature

        for needed in (self.certificate, self.certificate.with_suffix(".key"), self.authority):
            if not needed.is_file():
                raise InputError(f"{self.path}: {needed.relative_to(self.path)} is missing; take the whole kit again")
        try:
            root = x509.load_pem_x509_certificate(self.authority.read_bytes())
            own = x509.load_pem_x509_certificate(self.certificate.read_bytes())
            own.verify_directly_issued_by(root)
        except (ValueError, TypeError, InvalidSignature) as error:
            reason = "the certificate was not signed by the kit's authority" if not str(error) else str(error)
            raise InputError(f"{self.path}: {reason}; take the whole kit of one federation") from error
        common = own.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        expected = {"server": SERVER_NAME, "admin": ADMIN, "site": self.name}[self.role]
        if not common or common[0].value != expected:
            named = str(common[0].value) if common else "nobody"
            raise InputError(f"{self.path}: the certificate is {named}'s, expected {expected}'s; kits cannot be mixed")
        left = (self.expires() - datetime.now(UTC)).days
        if left < 0:
            raise InputError(f"{self.path}: the certificate ended on {self.expires():%Y-%m-%d}; renew it")
        return [f"the certificate ends in {left} days, on {self.expires():%Y-%m-%d}"] if left < WARN_DAYS else []


def open_kit(path: Path, role: Role) -> Kit:
    """The kit in a folder, which must be one for that role."""
    try:
        about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
        kit = Kit(path.resolve(), about["role"], about["name"], about["host"], int(about["port"]))
    except FileNotFoundError:
        raise InputError(f"{path}: not a start-up kit of fedproc; `fedproc federate init` makes them") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path / ABOUT}: cannot be read: {error}") from error
    if kit.role != role:
        whose = {"server": "the server", "admin": "the administrator", "site": "a site"}
        raise InputError(f"{path}: the kit of {whose[kit.role]}, expected that of {whose[role]}")
    return kit


def members(admin: Path, which: str = "sites") -> list[str]:
    """The sites that take part, in the order they were added; or those that were `removed`."""
    try:
        found = json.loads((admin / MEMBERS).read_text(encoding="utf-8")).get(which, [])
        return [str(name) for name in found]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{admin / MEMBERS}: cannot be read: {error}") from error


def init(out: Path, server: str, port: int, sites: Sequence[str]) -> list[Path]:
    """Make an authority and the kits of a server, an administrator and sites."""
    _check_host(server)
    _check_sites(sites)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"--out {out}: already there; expected a new or empty folder")
    with naming(out):
        authority = out / AUTHORITY
        authority.mkdir(parents=True)
        os.chmod(authority, 0o700)
        write_json(authority / ABOUT, {"host": server, "port": port})
        _provision(out, server, port, sites, [SERVER_NAME, "admin", *sites])
        write_json(out / "admin" / MEMBERS, {"sites": list(sites)})
    return [out / name for name in (SERVER_NAME, "admin", *sites)]


def add_site(kits: Path, name: str) -> Path:
    """A kit for one more site; the other kits stay as they are."""
    host, port = _authority(kits)
    _check_sites([name])
    known = members(kits / "admin")
    gone = members(kits / "admin", "removed")
    if name in known:
        raise InputError(f"{name}: already a member; `renew` makes its kit again")
    if name in gone:
        raise InputError(f"{name}: was removed, and its certificate may still be somewhere; take another name")
    with naming(kits):
        _provision(kits, host, port, [name], [name])
        write_json(kits / "admin" / MEMBERS, {"sites": [*known, name], "removed": gone})
    return kits / name


def remove_member(admin: Path, name: str) -> None:
    """Take a site off the member list."""
    known = members(admin)
    if name not in known:
        raise InputError(f"{name}: not a member; there are {', '.join(known) or 'none'}")
    left, gone = [each for each in known if each != name], members(admin, "removed")
    write_json(admin / MEMBERS, {"sites": left, "removed": [*gone, name]})


def renew(kits: Path, names: Sequence[str]) -> list[Path]:
    """New certificates and keys for these participants; data, state and settings in their kits stay."""
    host, port = _authority(kits)
    known = members(kits / "admin")
    for name in names:
        if name not in {SERVER_NAME, "admin", *known}:
            raise InputError(f"{name}: not a participant; there are server, admin, {', '.join(known)}")
    state = kits / AUTHORITY / "state" / "cert.json"
    with naming(kits):
        kept = json.loads(state.read_text(encoding="utf-8"))
        for name in names:
            kept.pop({"admin": ADMIN}.get(name, name), None)
        write_json(state, kept)
        _provision(kits, host, port, [n for n in names if n not in RESERVED], names, startup_only=True)
    return [kits / name for name in names]


def _authority(kits: Path) -> tuple[str, int]:
    try:
        about = json.loads((kits / AUTHORITY / ABOUT).read_text(encoding="utf-8"))
        return str(about["host"]), int(about["port"])
    except FileNotFoundError:
        raise InputError(
            f"{kits}: no authority in it; expected the folder that `fedproc federate init` wrote"
        ) from None


def _check_host(host: str) -> None:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return
    if HOST.fullmatch(host) is None:
        raise InputError(f"--server {host}: expected the host name or IP address that sites reach the server by")


def _check_sites(sites: Sequence[str]) -> None:
    if not sites:
        raise InputError("--sites: expected the name of one site at least")
    for name in sites:
        if NAME.fullmatch(name) is None or name in RESERVED:
            raise InputError(
                f"--sites {name}: expected a name of a-z, 0-9 and -, other than {', '.join(sorted(RESERVED))}"
            )
    twice = [name for name in sites if list(sites).count(name) > 1]
    if twice:
        raise InputError(f"--sites: {twice[0]} is named more than once")


def _provision(
    kits: Path, host: str, port: int, sites: Sequence[str], wanted: Sequence[str], startup_only: bool = False
) -> None:
    """Let NVFlare make the kits in a temporary folder, and take over those that are wanted."""
    participants: list[dict[str, Any]] = [
        {"name": SERVER_NAME, "type": "server", "org": ORGANISATION, "fed_learn_port": port, "admin_port": port,
         "default_host": host, "host_names": sorted({host, "localhost"})},
        {"name": ADMIN, "type": "admin", "org": ORGANISATION, "role": "project_admin"},
        *({"name": name, "type": "client", "org": ORGANISATION} for name in sites),
    ]  # fmt: skip
    state = kits / AUTHORITY / "state"
    with tempfile.TemporaryDirectory(prefix="fedproc-kits-") as made:
        work = Path(made) / PROJECT
        if state.is_dir():
            shutil.copytree(state, work / "state")
        made_in = _run_provisioner(Path(made), participants)
        for name in wanted:
            source = made_in / {"admin": ADMIN}.get(name, name)
            target = kits / name
            if startup_only and target.is_dir():
                shutil.rmtree(target / "startup")
                shutil.copytree(source / "startup", target / "startup")
            else:
                if target.exists():
                    raise InputError(f"{target}: already there; move it away first")
                shutil.copytree(source, target)
                _finish(target, name, host, port)
            for unused in [*(target / "startup").glob("*.sh"), *target.rglob("*.ipynb"), *target.rglob("readme.txt")]:
                unused.unlink()
            for key in (target / "startup").glob("*.key"):
                os.chmod(key, 0o600)
            os.chmod(target, 0o700)
        fresh = state.with_name("state.new")  # the authority's key is never without a whole copy
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(work / "state", fresh)
        for file in (fresh, *fresh.rglob("*")):
            os.chmod(file, 0o700 if file.is_dir() else 0o600)
        sync_all(fresh)
        old = state.with_name("state.old")
        shutil.rmtree(old, ignore_errors=True)
        if state.is_dir():
            os.replace(state, old)
        move(fresh, state)
        shutil.rmtree(old, ignore_errors=True)


def _run_provisioner(root: Path, participants: Sequence[dict[str, Any]]) -> Path:
    from nvflare.lighter.constants import CtxKey
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.signature import SignatureBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provision import prepare_project
    from nvflare.lighter.provisioner import Provisioner

    builders = [
        WorkspaceBuilder(),
        StaticFileBuilder(config_folder="config", scheme="grpc"),
        CertBuilder(root_valid_days=ROOT_DAYS),
        SignatureBuilder(),
    ]
    project = {"api_version": 3, "name": PROJECT, "description": "", "participants": list(participants)}
    with _quiet() as said:
        done = Provisioner(str(root), builders).provision(prepare_project(project))
    if done.get(CtxKey.BUILD_ERROR):
        raise RunError(f"the kits could not be made: {said.getvalue().strip()[-500:]}")
    return Path(done[CtxKey.CURRENT_PROD_DIR])


@contextmanager
def _quiet() -> Iterator[io.StringIO]:
    """Keep what a library prints."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        yield said


def _finish(kit: Path, name: str, host: str, port: int) -> None:
    """Our settings: no code in jobs for anyone, our classes alone, everything inside the kit."""
    role: Role = "server" if name == SERVER_NAME else "admin" if name == "admin" else "site"
    write_json(kit / ABOUT, {"role": role, "name": name, "host": host, "port": port})
    if role == "admin":
        return
    local = kit / "local"
    resources = json.loads((local / "resources.json.default").read_text(encoding="utf-8"))
    resources["class_allow_list"] = [CONTROLLER if role == "server" else FORWARDER]
    if role == "server":
        for component in resources["components"]:
            if component["id"] == "job_manager":
                component["args"]["uri_root"] = "jobs"
            if component["id"] == "job_scheduler":
                component["args"] = {"max_jobs": 8, "max_schedule_count": 1000}
        resources["components"] = [c for c in resources["components"] if c["id"] != "log_receiver"]
        resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = "snapshots"
        resources["servers"][0]["heart_beat_timeout"] = 30
    else:
        resources["allow_log_streaming"] = False  # logs of a site stay at the site
        resources["components"] = [c for c in resources["components"] if c["id"] != "site_log_streamer"]
        (kit / policy.FILE).write_text(policy.TEXT, encoding="utf-8")
    write_json(local / "resources.json", resources)
    nothing = dict.fromkeys(("submit_job", "clone_job", "manage_job", "download_job", "operate"), "none")
    nothing |= {"shell_commands": "none", "byoc": "none", "server-predeployed-flwr": "none"}
    rights = ("submit_job", "manage_job", "download_job", "view", "operate", "app_command")
    everything = dict.fromkeys(rights, "any")
    permissions = {
        "project_admin": {**nothing, **everything},
        **{other: {**nothing, "view": "any"} for other in ("org_admin", "lead", "member")},
    }
    write_json(local / "authorization.json", {"format_version": "1.0", "permissions": permissions})
    for default in local.glob("*.sample"):
        default.unlink()
