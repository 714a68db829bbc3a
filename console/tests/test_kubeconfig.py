"""What a kubeconfig says, and what is refused of it by name."""

from __future__ import annotations

import base64
import json
import os
import re
import ssl
import stat
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headway.common.errors import ConfigError
from headway.console.pods.kubeconfig import connect, with_whole_path
from headway.launch.engines.kubernetes.config import KubernetesConfig

Write = Callable[..., KubernetesConfig]


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate and its key."""
    folder = tmp_path_factory.mktemp("pem")
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    words += ["-nodes", "-subj", "/CN=x", "-keyout", "key.pem", "-out", "crt.pem"]
    subprocess.run(words, cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    def make(
        user: dict[str, Any], cluster: dict[str, Any] | None = None, **more: Any
    ) -> KubernetesConfig:
        entry = {"server": "https://127.0.0.1:9", **(cluster or {})}
        content = {
            "current-context": "a",
            "contexts": [
                {"name": "a", "context": {"cluster": "c", "user": "u", "namespace": "train"}},
                {"name": "b", "context": {"cluster": "c", "user": "u"}},
                {"name": "broken", "context": {"cluster": "absent", "user": "u"}},
            ],
            "clusters": [{"name": "c", "cluster": entry}],
            "users": [{"name": "u", "user": user}],
        }
        file = tmp_path / "config"
        file.write_text(json.dumps(content))
        return KubernetesConfig("i", "c", **{"kubeconfig": str(file), **more})

    return make


def test_a_context_names_the_server_and_the_namespace(write: Write) -> None:
    user = {"token": "secret"}
    found = connect(write(user))
    assert (found.api.server, found.namespace) == ("https://127.0.0.1:9", "train")
    assert connect(write(user, context="b")).namespace == "default"
    assert connect(write(user, namespace="mine")).namespace == "mine"
    assert "secret" not in repr(vars(found.api))


def test_certificates_are_files_beside_it_or_base64_in_it(write: Write, pem: Path) -> None:
    files = {name: pem / f"{name}.pem" for name in ("key", "crt")}
    data = {k: base64.b64encode(path.read_bytes()).decode() for k, path in files.items()}
    connect(
        write(
            {"client-certificate-data": data["crt"], "client-key-data": data["key"]},
            {"certificate-authority-data": data["crt"]},
        )
    )
    config = write(
        {"client-certificate": "crt.pem", "client-key": "key.pem"},
        {"certificate-authority": "crt.pem"},
    )
    with pytest.raises(ConfigError, match=r"cannot be used: .*No such file"):
        connect(config)
    for path in files.values():
        (Path(config.kubeconfig).parent / path.name).write_bytes(path.read_bytes())
    connect(config)


def test_the_environment_then_the_usual_place_then_the_account_of_a_pod_is_taken(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = Path(write({"token": "t"}).kubeconfig)
    account = tmp_path / "account"
    nowhere = KubernetesConfig("i", "c", account=str(account))
    with pytest.raises(ConfigError, match="no kubeconfig was found"):
        connect(nowhere)
    account.mkdir()
    (account / "token").write_text("t")
    (account / "namespace").write_text("podspace\n")
    assert connect(nowhere).namespace == "podspace"
    usual = tmp_path / "home" / ".kube" / "config"
    usual.parent.mkdir(parents=True)
    usual.write_text(named.read_text())
    assert str(usual) in connect(nowhere).source
    monkeypatch.setenv("KUBECONFIG", str(named))
    assert str(named) in connect(nowhere).source
    monkeypatch.setenv("KUBECONFIG", f"{named}:{usual}")
    with pytest.raises(ConfigError, match="names several files"):
        connect(nowhere)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "exec of the user cannot be used: a plug-in": ({"exec": {"command": "aws"}}, {}, {}),
    "auth-provider of the user": ({"auth-provider": {"name": "gcp"}}, {}, {}),
    "username of the user": ({"username": "a", "password": "b"}, {}, {}),
    "as of the user": ({"token": "t", "as": "b"}, {}, {}),
    "insecure-skip-tls-verify in the cluster": (
        {"token": "t"}, {"insecure-skip-tls-verify": True}, {},
    ),
    "proxy-url in the cluster": ({"token": "t"}, {"proxy-url": "http://p"}, {}),
    "server='http://x' is not": ({"token": "t"}, {"server": "http://x"}, {}),
    "neither a token nor a client certificate": ({}, {}, {}),
    "client-key-data is not a PEM file": (
        {"client-certificate-data": "YQ==", "client-key-data": "%"}, {}, {},
    ),
    "its certificates or its token cannot be used": (
        {"client-certificate-data": "YQ==", "client-key-data": "YQ=="}, {}, {},
    ),
    "has no context 'x'": ({"token": "t"}, {}, {"context": "x"}),
    "has no cluster 'absent'": ({"token": "t"}, {}, {"context": "broken"}),
}  # fmt: skip


@pytest.mark.parametrize(("expected", "given"), REFUSED.items(), ids=REFUSED)
def test_what_cannot_be_used_is_named_with_the_remedy(
    write: Write, expected: str, given: tuple[dict[str, Any], dict[str, Any], dict[str, Any]]
) -> None:
    user, cluster, more = given
    with pytest.raises(ConfigError, match=expected) as error:
        connect(write(user, cluster, **more))
    assert error.value.remedy and "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "- a", "a: [", "\x00"])
def test_a_file_that_is_not_a_kubeconfig_is_one_line(write: Write, text: str) -> None:
    config = write({"token": "t"})
    Path(config.kubeconfig).write_text(text)
    with pytest.raises(ConfigError, match="kubeconfig") as error:
        connect(config)
    assert "\n" not in str(error.value)


# ---- what is meant here and now -----------------------------------------------------------------
def test_what_is_kept_of_a_kubeconfig_holds_whatever_is_current_later(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path(write({"token": "t"}).kubeconfig)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", file.name)
    kept = with_whole_path(KubernetesConfig("i", "c"))
    assert (kept.kubeconfig, kept.context) == (str(file.resolve()), "a")
    assert (kept.namespace, kept.server) == ("train", "https://127.0.0.1:9")
    assert with_whole_path(kept) == kept
    found = json.loads(file.read_text())
    found["current-context"] = "b"
    file.write_text(json.dumps(found))
    monkeypatch.chdir("/")
    monkeypatch.setenv("KUBECONFIG", "/absent")
    assert connect(kept).source == f"context a of {file}"
    found["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:10"
    file.write_text(json.dumps(found))
    with pytest.raises(ConfigError, match=r"is the API server https://127\.0\.0\.1:10, not .*:9"):
        connect(kept)


def test_a_pod_keeps_its_account_and_is_not_taken_elsewhere_by_a_kubeconfig(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("t")
    (account / "namespace").write_text("podspace\n")
    kept = with_whole_path(KubernetesConfig("i", "c", account=str(account)))
    assert (kept.kubeconfig, kept.context, kept.namespace) == ("", "", "podspace")
    assert connect(kept).api.server == kept.server == kept.api
    monkeypatch.setenv("KUBECONFIG", write({"token": "t"}).kubeconfig)
    with pytest.raises(ConfigError, match=r"not https://kubernetes\.default\.svc"):
        connect(kept)


# ---- secrets ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "text",
    [
        "users:\n- token: SECRET: x\n",
        "users:\n- token: 'SECRET\n",
        'users:\n- token: "SECRET\\q"\n',
        "users:\n- token: *SECRET\n",
        "users:\n- token: !SECRET x\n",
        "users:\n- token: SECRET\x00\n",
    ],
)
def test_a_file_that_is_not_yaml_is_refused_without_what_it_holds(write: Write, text: str) -> None:
    config = write({"token": "t"})
    Path(config.kubeconfig).write_text(text)
    with pytest.raises(ConfigError, match="cannot read the kubeconfig") as error:
        connect(config)
    assert "SECRET" not in str(error.value) and "\n" not in str(error.value)
    assert error.value.__suppress_context__, "what the library says is not shown"
    assert re.search(r"line [234]: |it is not YAML", str(error.value))


def test_a_token_that_cannot_be_sent_is_refused_without_it(write: Write, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("SECRET\nSECRET")
    for user in ({"token": "SECRET\nSECRET"}, {"tokenFile": "token"}):
        with pytest.raises(ConfigError, match="characters that no token has") as error:
            connect(write(user))
        assert "SECRET" not in str(error.value)


def test_a_key_that_is_text_is_never_on_a_disk_and_of_nobody_else(
    write: Write, pem: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {name: base64.b64encode((pem / f"{name}.pem").read_bytes()) for name in ("key", "crt")}
    user = {"client-certificate-data": data["crt"], "client-key-data": data["key"]}
    config = write({key: value.decode() for key, value in user.items()})
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    load, seen = ssl.SSLContext.load_cert_chain, list[str]()

    def watched(context: ssl.SSLContext, *paths: str) -> None:
        for path in paths:
            assert str(Path(path).readlink()).startswith("/memfd:") and not list(folder.iterdir())
            assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
        seen.extend(paths)
        load(context, *paths)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", watched)
    connect(config)
    assert len(seen) == 2 and not list(folder.iterdir())
    assert not any("memfd:pem" in _target_of(fd) for fd in os.listdir("/proc/self/fd"))


def _target_of(descriptor: str) -> str:
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:  # that of the listing
        return ""
