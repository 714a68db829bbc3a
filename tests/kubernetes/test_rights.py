"""What a user may do: the Role on the page suffices, and each right of it is missed by its name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from headway.console.pods import rights
from headway.testkit.kubernetes.fake import FakeApi
from headway.testkit.kubernetes.played import Namespace
from headway.testkit.kubernetes.served import NOBODY

from tests.kubernetes.outside import LIMIT_S, OBJECTS, ROOT, Console


def _rules_of_the_page() -> list[dict[str, Any]]:
    page = (ROOT / "docs" / "howto" / "kubernetes.md").read_text()
    [text] = re.findall(r"```yaml\n(rules:.*?)```", page, re.DOTALL)
    return list(yaml.safe_load(text)["rules"])


def test_the_role_on_the_page_suffices_to_start_twice_follow_evict_and_stop(
    console: Console, namespace: Namespace
) -> None:
    namespace.grant("nobody", _rules_of_the_page())
    console.use(token=NOBODY)
    console.headway(*console.run_words("--detach"))
    assert "is live: following it" in console.headway(*console.run_words("--detach"))
    assert console.everything() == OBJECTS
    namespace.start_pod("tiny", 0)
    assert "1 of 3 pods run" in console.headway("status", "tiny")
    console.headway("evict", "tiny", "0", "--yes")
    console.headway("stop", "tiny", "--now")
    assert console.everything() == set()

    process = console.start(*console.run_words("--detach"))
    assert process.wait(LIMIT_S) == 0, console.said()
    namespace.end_job("tiny")
    process = console.start("watch", "tiny")
    assert process.wait(LIMIT_S) == 0, console.said()


def test_a_right_that_is_missing_is_named_in_one_line_and_nothing_is_created(
    fake_api: FakeApi, tmp_path: Path
) -> None:
    needed = rights.needed()
    for verb, group, resource in needed[::4]:  # of each kind of object at most one
        with Namespace(fake_api) as namespace:
            given = [right for right in needed if right != (verb, group, resource)]
            rules = [{"apiGroups": [g], "resources": [r], "verbs": [v]} for v, g, r in given]
            namespace.grant("nobody", rules)
            folder = tmp_path / f"{verb}-{resource}"
            folder.mkdir()
            console = Console(folder, namespace)
            console.use(token=NOBODY)
            error = console.refused(*console.run_words())
            assert f" may not {verb} {resource} in namespace {namespace.name}; ask for" in error
            assert console.everything() == set() and not (folder / "runs" / "tiny").exists()
