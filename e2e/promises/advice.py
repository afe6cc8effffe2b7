"""What remora says about a cluster that runs: `check` of namespaces, `why` of a pod."""
import json

from kit import *
from promises.mesh import broken


@once
def sick():
    """A namespace with a pod that never starts, and one that is well."""
    namespace("sick", **{"istio-injection": "enabled"})
    apply(broken("sick"), pod("well", "sick", [SLEEPER]))
    ready("well", "sick")


@promise
def check_of_a_namespace_finds_the_pod_that_never_starts_and_only_that():
    sick()
    done = asking("check", "--namespace", "sick", "--format", "json")
    assert done.returncode == 1, done.stderr
    blamed = {(one["pod"], f["code"]) for one in json.loads(done.stdout)["pods"] for f in one["findings"]
              if f["severity"] == "error"}
    assert {name for name, _ in blamed} == {"broken"} and ("broken", "RM001") in blamed, blamed
    done = asking("check", "--namespace", "shop")
    assert done.returncode == 0, done.stdout + done.stderr


@promise
def check_of_all_namespaces_sees_each_workload_once():
    sick()
    done = asking("check", "--all-namespaces", "--format", "json")
    assert done.returncode == 1, done.stderr
    seen = [one["object"] for one in json.loads(done.stdout)["pods"]]
    assert any("sick/broken" in one for one in seen) and any("sick/well" in one for one in seen), seen
    carts = [one for one in seen if "shop/cart" in one]
    assert len(carts) == 1, "of two pods that are made alike one is looked at"


@promise
def why_names_the_container_a_pod_waits_for():
    sick()
    stuck = lambda: state(get("pod", "broken", "sick"), "migrate").get("restartCount", 0) > 0
    until("the init container to fail", stuck)
    done = asking("why", "broken", "-n", "sick", "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 1 and told["container"] == "migrate" and not told["fine"], told
    assert told["behind"] == ["app", "istio-proxy"], told
    assert "RM001" in json.dumps(told["findings"]), told
    done = asking("why", "well", "-n", "sick")
    assert done.returncode == 0 and "runs and is ready" in done.stdout, done


@promise
def why_tells_that_a_pod_was_refused_and_by_whom():
    namespace("refused", **{"istio-injection": "enabled", "remora.dev/enforce": "true"})
    template = broken("refused")
    until("the label to be known", lambda: called("create", "--dry-run=server", "-f", "-", text=json.dumps(template)).returncode)
    one = deployment("shy", "refused", [])
    one["spec"]["template"]["metadata"]["annotations"] = template["metadata"]["annotations"]
    one["spec"]["template"]["spec"] = {**template["spec"]}
    apply(one)

    def refused():
        done = asking("why", "shy", "-n", "refused")
        return done if "could not be created" in done.stderr else None
    done = until("the refusal to be told", refused)
    assert done.returncode == 2 and "migrate" in done.stderr, done
