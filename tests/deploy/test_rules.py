"""Each overlay and example keeps the rules, and each rule sees what breaks it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .manifests import EXAMPLES, OVERLAYS, Object, containers, example, of_kind, one, overlay, with_components
from .rules import RULES

NOT_OF_EXAMPLES = {"references", "services"}  # what an example needs beside it is said in its first lines


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", OVERLAYS)
def test_every_overlay_keeps_every_rule(name: str, rule: str):
    assert [*RULES[rule](overlay(name))] == []


@pytest.mark.parametrize("rule", sorted(RULES.keys() - NOT_OF_EXAMPLES))
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_keeps_the_rules(path: Path, rule: str):
    objects = example(path)
    assert len(objects) == 2
    assert [*RULES[rule](objects)] == []


@pytest.mark.parametrize("rule", RULES)
def test_components_keep_the_rules(rule: str, tmp_path: Path):
    objects = with_components(tmp_path / "with", "overlays/bsp", "tls", "gpu", "monitoring")
    assert [*RULES[rule](objects)] == []


def server(objects: tuple[Object, ...]) -> Object:
    return one(objects, "StatefulSet", "ps-server")


def job(objects: tuple[Object, ...]) -> Object:
    return one(objects, "Job", "ps-worker")


def pod(workload: Object) -> Object:
    return workload["spec"]["template"]["spec"]


def first(workload: Object) -> Object:
    return containers(workload)[0]


def variable(workload: Object, name: str) -> Object:
    (found,) = [it for it in first(workload)["env"] if it["name"] == name]
    return found


def rules_of(objects: tuple[Object, ...]) -> list[Object]:
    return job(objects)["spec"]["podFailurePolicy"]["rules"]


def config(objects: tuple[Object, ...]) -> dict[str, str]:
    return one(objects, "ConfigMap", "ps-job")["data"]


def policy(objects: tuple[Object, ...]) -> Object:
    return of_kind(objects, "NetworkPolicy")[0]["spec"]


Break = Callable[[tuple[Object, ...]], object]
BROKEN: list[tuple[str, str, Break]] = [
    ("security", "may run as root", lambda it: pod(server(it))["securityContext"].pop("runAsNonRoot")),
    ("security", "seccompProfile", lambda it: pod(job(it))["securityContext"].pop("seccompProfile")),
    ("security", "token of the Kubernetes API", lambda it: pod(job(it)).pop("automountServiceAccountToken")),
    ("security", "enableServiceLinks", lambda it: pod(server(it)).pop("enableServiceLinks")),
    ("security", "allowPrivilegeEscalation", lambda it: first(job(it)).pop("securityContext")),
    (
        "security",
        "can be written",
        lambda it: first(job(it))["securityContext"].update(readOnlyRootFilesystem=False),
    ),
    ("security", "capabilities", lambda it: first(job(it))["securityContext"].pop("capabilities")),
    (
        "resources",
        "4GB is no quantity",
        lambda it: first(job(it))["resources"]["limits"].update(memory="4GB"),
    ),
    ("resources", "not its limits", lambda it: first(job(it))["resources"]["limits"].update(memory="3Gi")),
    (
        "resources",
        "beside another",
        lambda it: server(it)["spec"]["volumeClaimTemplates"][0]["spec"]["accessModes"].append(
            "ReadWriteOnce"
        ),
    ),
    ("volumes", "no volume tmp", lambda it: pod(server(it))["volumes"].pop()),
    ("volumes", "nobody mounts", lambda it: first(job(it))["volumeMounts"].pop()),
    ("volumes", "to /tmp", lambda it: first(job(it))["volumeMounts"].pop(1)),
    (
        "references",
        "no ConfigMap",
        lambda it: first(job(it))["envFrom"][0]["configMapRef"].update(name="other"),
    ),
    ("references", "no Secret", lambda it: one(it, "Secret", "ps-token")["metadata"].update(name="other")),
    ("references", "no ServiceAccount", lambda it: pod(job(it)).update(serviceAccountName="other")),
    ("references", "selects no pod", lambda it: server(it)["spec"]["selector"]["matchLabels"].update(x="y")),
    ("listening", "asks port 1", lambda it: first(server(it))["readinessProbe"]["grpc"].update(port=1)),
    ("listening", "PS_DATA_PORT is 1", lambda it: variable(server(it), "PS_DATA_PORT").update(value="1")),
    ("listening", "at most 15", lambda it: first(server(it))["ports"][0].update(name="a" * 16)),
    ("ports", "has a port other", lambda it: policy(it)["ingress"][0]["ports"][0].update(port="other")),
    ("services", "not headless", lambda it: one(it, "Service", "ps-server")["spec"].pop("clusterIP")),
    (
        "services",
        "have no name",
        lambda it: one(it, "Service", "ps-server")["spec"].pop("publishNotReadyAddresses"),
    ),
    ("services", "not headless", lambda it: server(it)["spec"].update(serviceName="other")),
    ("jobs", "restartPolicy Never", lambda it: pod(job(it)).update(restartPolicy="OnFailure")),
    (
        "jobs",
        "two pods of one",
        lambda it: job(it)["spec"].update(podReplacementPolicy="TerminatingOrFailed"),
    ),
    ("jobs", "ignore evictions", lambda it: rules_of(it).reverse()),
    ("jobs", "FailJob ends", lambda it: rules_of(it)[1].update(action="FailJob")),
    ("jobs", "container other", lambda it: rules_of(it)[1]["onExitCodes"].update(containerName="other")),
    (
        "exit_codes",
        "ends with 78 is started again",
        lambda it: rules_of(it)[1]["onExitCodes"].update(values=[64, 65]),
    ),
    ("exit_codes", "ends with 75 is to be", lambda it: rules_of(it)[1]["onExitCodes"]["values"].append(75)),
    ("exit_codes", "0 is no failure", lambda it: rules_of(it)[1]["onExitCodes"]["values"].append(0)),
    ("exit_codes", "needs backoffLimitPerIndex", lambda it: job(it)["spec"].pop("backoffLimitPerIndex")),
    ("exit_codes", "have no numbers", lambda it: job(it)["spec"].pop("completionMode")),
    ("counts", "workers: 3 and 4", lambda it: config(it).update(PS_NUM_WORKERS="3")),
    ("counts", "servers: 2 and 3", lambda it: server(it)["spec"].update(replicas=3)),
    (
        "counts",
        "servers: 2 and 3",
        lambda it: variable(server(it), "PS_SHARD").update(value="$(POD_INDEX)/3"),
    ),
    (
        "counts",
        "servers: 2 and 4",
        lambda it: config(it).update(PS_SERVERS="ps-server-{0..3}.ps-server:50051"),
    ),
    ("counts", "all workers run at once", lambda it: job(it)["spec"].update(parallelism=2)),
    ("known_variables", "knows no PS_CONSISTENZY", lambda it: config(it).update(PS_CONSISTENZY="bsp")),
    (
        "known_variables",
        "knows no PS_JOB",
        lambda it: first(server(it))["env"].append({"name": "PS_JOB", "value": "x"}),
    ),
    ("known_variables", "nothing stands for", lambda it: first(server(it))["env"].pop(1)),
    ("images", "image other:1", lambda it: first(job(it)).update(image="other:1")),
    ("identities", "both have PS_WORKER=0", lambda it: variable(job(it), "PS_WORKER").update(value="0")),
    (
        "identities",
        "does not list",
        lambda it: variable(server(it), "PS_ADVERTISE").update(value="$(POD_NAME)"),
    ),
]


@pytest.mark.parametrize(("rule", "said", "breaks"), BROKEN)
def test_a_rule_sees_what_breaks_it(rule: str, said: str, breaks: Break):
    """And what is broken is said."""
    objects = overlay("bsp")
    breaks(objects)
    assert any(said in line for line in RULES[rule](objects)), [*RULES[rule](objects)]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_server_of_a_job_that_ends_with_0_when_it_is_stopped_is_seen(path: Path):
    objects = example(path)
    variable(one(objects, "Job", "server"), "PS_STOPPED_CODE").update(value="0")
    assert any("gets no successor" in line for line in RULES["successors"](objects))


@pytest.mark.parametrize(
    ("names", "said"),
    [(["*.ps-server"], "gRPC takes no"), (["ps-server-0.ps-server"], "not for ps-server-1.ps-server")],
)
def test_certificates_that_servers_cannot_be_reached_with_are_seen(
    names: list[str], said: str, tmp_path: Path
):
    objects = with_components(tmp_path / "with", "overlays/bsp", "tls")
    one(objects, "Certificate", "ps-server")["spec"]["dnsNames"] = names
    assert any(said in line for line in RULES["certificates"](objects))


def test_every_rule_is_broken_once():
    assert {rule for rule, _, _ in BROKEN} | {"certificates", "successors"} == set(RULES)
