"""Manifests as Kubernetes takes them: rendered, by the schemas of several releases, and fast."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest

from tests.until import LIMIT_S

from .manifests import (
    DEPLOY,
    EXAMPLES,
    OVERLAYS,
    Object,
    containers,
    example,
    kubectl,
    of_kind,
    overlay,
    pods,
    with_components,
)
from .rules import RULES

RELEASES = ("1.31", "1.33", "1.36")
OF_OTHERS = (
    "Issuer",
    "Certificate",
    "PodMonitor",
    "PrometheusRule",
)  # no part of Kubernetes: in components alone


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", OVERLAYS)
def test_every_object_of_an_overlay_is_what_the_schemas_say(name: str, release: str):
    for it in overlay(name):
        kubernetes_validate.validate(it, release, strict=True)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_jobs_of_examples_are_what_the_schemas_say(path: Path):
    for it in example(path):
        kubernetes_validate.validate(it, RELEASES[0], strict=True)


def test_so_are_objects_with_components(tmp_path: Path):
    objects = with_components(tmp_path / "with", "overlays/bsp", "tls", "gpu", "monitoring")
    for it in objects:
        if it["kind"] not in OF_OTHERS:
            kubernetes_validate.validate(it, RELEASES[0], strict=True)
    assert len(of_kind(objects, "Certificate")) == 3


def test_an_index_of_the_job_is_a_group_that_shares_its_containers_processors(tmp_path: Path):
    """Its processes are told how many they are, and not that each has all processors of the container."""
    objects = with_components(tmp_path / "with", "overlays/bsp", "groups")
    for it in objects:
        kubernetes_validate.validate(it, RELEASES[0], strict=True)
    assert [line for rule in RULES.values() for line in rule(objects)] == []
    workers = [pod for pod in pods(objects) if pod.name.startswith("ps-worker-")]
    for number, pod in enumerate(workers):
        environment = pod.environment(containers(pod.workload)[0])
        assert (environment["PS_WORKER"], environment["PS_NUM_WORKERS"]) == (str(number), str(len(workers)))
        assert environment["PS_NPROC"] == environment["PS_GROUP_SIZE"] == "2"
        assert "OMP_NUM_THREADS" not in environment


def test_the_schemas_see_a_field_that_there_is_not():
    (job,) = of_kind(overlay("bsp"), "Job")
    job["spec"]["completion"] = 4
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, RELEASES[0], strict=True)


@pytest.mark.parametrize("name", OVERLAYS)
def test_all_lie_in_a_namespace_of_their_own_that_takes_restricted_pods_alone(name: str):
    objects = overlay(name)
    (space,) = of_kind(objects, "Namespace")
    assert space["metadata"]["name"] == f"ps-{name}"
    assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert {it["metadata"].get("namespace", f"ps-{name}") for it in objects} == {f"ps-{name}"}


def test_the_base_has_plain_objects_alone():
    kinds = {it["kind"] for name in OVERLAYS for it in overlay(name)}
    assert not kinds & set(OF_OTHERS)


def test_models_differ_in_their_namespace_and_in_what_workers_say():
    def without(objects: tuple[Object, ...]) -> list[Object]:
        text = repr([it for it in objects if it["kind"] != "ConfigMap"])
        for name in ("bsp", "ssp", "asp"):
            text = text.replace(f"ps-{name}", "ps-x")
        for config in of_kind(objects, "ConfigMap"):
            text = text.replace(config["metadata"]["name"], "ps-job")
        return [{"all": text}]

    assert without(overlay("bsp")) == without(overlay("ssp")) == without(overlay("asp"))


def test_an_overlay_is_rendered_at_once():
    """It is a matter of tenths of a second of a core, however long it waits for one."""
    folder = DEPLOY / "kubernetes" / "overlays" / "bsp"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([kubectl(), "kustomize", str(folder)], check=True, capture_output=True, timeout=LIMIT_S)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 10


def test_the_yaml_is_tidy():
    rules = "{extends: default, rules: {line-length: {max: 125}, document-start: disable}}"
    done = subprocess.run(
        [sys.executable, "-m", "yamllint", "--strict", "-d", rules, str(DEPLOY)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
