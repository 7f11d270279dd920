"""A segment of a run as NVFlare wants it: a job that is configuration only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedproc.federate.names import CONTROLLER, FORWARDER, SERVER_NAME, TASK

INTERVAL = 0.1  # seconds between a site's questions for work
SILENCE, GRACE = 30, 5.0  # seconds until a silent site is taken for gone, and until that is believed


def write_job(
    folder: Path,
    run: str,
    experiment: dict[str, Any],
    options: dict[str, Any],
    members: Sequence[str],
    sites: Sequence[str],
) -> Path:
    """The job of a run for these sites, which must be connected; returns its folder."""
    job = folder / run
    config = job / "app" / "config"
    config.mkdir(parents=True)
    meta = {
        "name": run,
        "resource_spec": {},
        "min_clients": 1,
        "mandatory_clients": [],
        "deploy_map": {"app": [SERVER_NAME, *sites]},
    }
    server = {
        "format_version": 2,
        "server": {"task_request_interval": INTERVAL, "heart_beat_timeout": SILENCE},
        "dead_client_grace_period": GRACE,
        "task_data_filters": [],
        "task_result_filters": [],
        "components": [],
        "workflows": [
            {
                "id": "rounds",
                "path": CONTROLLER,
                "args": {"run": run, "experiment": experiment, "options": options, "members": list(members)},
            }
        ],
    }
    client = {
        "format_version": 2,
        "executors": [{"tasks": [TASK], "executor": {"path": FORWARDER, "args": {}}}],
        "task_data_filters": [],
        "task_result_filters": [],
        "components": [],
    }
    (job / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    (config / "config_fed_server.json").write_text(json.dumps(server), encoding="utf-8")
    (config / "config_fed_client.json").write_text(json.dumps(client), encoding="utf-8")
    return job
