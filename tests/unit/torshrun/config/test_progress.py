"""Whom a job tells how far it is, by the variables of a TrainJob's pods."""

from __future__ import annotations

import pytest

from torshrun.config.progress import progress_notes, progress_server

POD = {
    "KUBEFLOW_TRAINER_SERVER_URL": "https://trainer.kubeflow.svc:10443/apis/trainjobs/a/status",
    "KUBEFLOW_TRAINER_SERVER_CA_CERT": "/var/run/secrets/kubeflow/trainer/ca.crt",
    "KUBEFLOW_TRAINER_SERVER_TOKEN": "/var/run/secrets/kubeflow/trainer/token",
}


def test_a_pod_of_a_train_job() -> None:
    server = progress_server(POD)
    assert server is not None
    assert (server.url, server.ca_file, server.token_file) == tuple(POD.values())
    assert [*progress_notes(POD)] == []
    without = {k: text for k, text in POD.items() if not k.endswith("CERT")}
    assert progress_server(without) is not None


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {**POD, "KUBEFLOW_TRAINER_SERVER_URL": ""},
        {**POD, "DISABLE_KUBEFLOW_INTEGRATION": "True"},
        {**POD, "TORSH_STORE_ENDPOINT": "unix:@a"},  # in a worker of another torshrun's
    ],
)
def test_where_nobody_is_told(environ: dict[str, str]) -> None:
    assert progress_server(environ) is None
    assert [*progress_notes(environ)] == []


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"KUBEFLOW_TRAINER_SERVER_URL": "http://127.0.0.1:1/"}, "is not https://"),
        ({"KUBEFLOW_TRAINER_SERVER_URL": "trainer\x1b[2J"}, r"='trainer\x1b[2J' is not a URL"),
        ({"KUBEFLOW_TRAINER_SERVER_URL": "https://a:0/"}, "is not a URL"),
        ({"KUBEFLOW_TRAINER_SERVER_TOKEN": ""}, "does not say where the token"),
    ],
)
def test_variables_that_cannot_be(changed: dict[str, str], told: str) -> None:
    (line,) = progress_notes({**POD, **changed})
    assert told in line
    assert progress_server({**POD, **changed}) is None
