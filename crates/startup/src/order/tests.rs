use super::{Capture, Item, Need, Plan, Problem, ProxyPlace, Role, plan, plan_main};

fn item(name: &str, role: Role) -> Item {
    Item {
        name: name.to_owned(),
        role,
        need: Need::Unknown,
        start_after: vec![],
        uses: vec![],
        exempt: false,
    }
}

fn user(name: &str) -> Item {
    item(name, Role::User)
}

fn names(items: &[Item], plan: &Plan) -> String {
    plan.order
        .iter()
        .map(|i| items[*i].name.as_str())
        .collect::<Vec<_>>()
        .join(" ")
}

fn native(users: Vec<Item>) -> Vec<Item> {
    let mut items = users;
    items.push(item("otel", Role::AgentCopy));
    items.push(item("istio-init", Role::Capture));
    items.push(item("istio-proxy", Role::Proxy));
    items
}

fn plan_native(items: &[Item]) -> Plan {
    plan(items, Capture::ByInit, ProxyPlace::Native)
}

#[test]
fn usual_native_order() {
    let items = native(vec![item("web", Role::WebAgent), user("u1"), user("u2")]);
    let plan = plan_native(&items);
    assert_eq!(names(&items, &plan), "istio-init istio-proxy otel u1 u2 web");
    assert!(plan.problems.is_empty());
}

#[test]
fn usual_classic_order_captures_last() {
    let items = vec![
        item("istio-init", Role::LateCapture),
        user("u"),
        item("otel", Role::AgentCopy),
    ];
    let plan = plan(&items, Capture::ByInit, ProxyPlace::Main);
    assert_eq!(names(&items, &plan), "otel u istio-init");
    assert!(plan.problems.is_empty());
}

#[test]
fn direct_goes_before_capture_and_takes_its_agent_along() {
    let mut migrate = user("migrate");
    migrate.need = Need::Direct;
    migrate.uses = vec!["otel".to_owned()];
    let items = native(vec![user("u1"), migrate]);
    let plan = plan_native(&items);
    assert_eq!(names(&items, &plan), "otel migrate istio-init istio-proxy u1");
    assert!(plan.problems.is_empty());
}

#[test]
fn start_after_moves_only_what_it_must() {
    let mut first = user("a");
    first.start_after = vec!["c".to_owned()];
    let items = native(vec![first, user("b"), user("c"), user("d")]);
    assert_eq!(
        names(&items, &plan_native(&items)),
        "istio-init istio-proxy otel c a b d"
    );
}

#[test]
fn contradictions_are_shown_and_the_mesh_order_holds() {
    let mut x = user("x");
    x.need = Need::Direct;
    x.start_after = vec!["y".to_owned()];
    let mut y = user("y");
    y.need = Need::Mesh;
    let items = native(vec![x, y]);
    let plan = plan_native(&items);
    assert_eq!(names(&items, &plan), "istio-init istio-proxy otel x y");
    let Some(Problem::Contradiction { cycle }) = plan.problems.first() else {
        panic!("{:?}", plan.problems)
    };
    assert_eq!(cycle.first(), cycle.last());
    for name in ["x", "y", "istio-proxy", "istio-init"] {
        assert!(cycle.iter().any(|c| c == name), "{cycle:?}");
    }
}

#[test]
fn unknown_and_own_names_are_reported() {
    let mut x = user("x");
    x.start_after = vec!["nobody".to_owned(), "x".to_owned()];
    let items = native(vec![x]);
    assert_eq!(plan_native(&items).problems.len(), 2);
}

#[test]
fn classic_cni_leaves_init_containers_without_network() {
    let mut quiet = user("quiet");
    quiet.need = Need::Nothing;
    let mut exempt = user("exempt");
    exempt.exempt = true;
    let items = vec![
        user("u"),
        quiet,
        exempt,
        item("istio-validation", Role::Validation),
        item("otel", Role::AgentCopy),
    ];
    let plan = plan(&items, Capture::Sandbox, ProxyPlace::Main);
    assert_eq!(names(&items, &plan), "istio-validation otel u quiet exempt");
    assert_eq!(
        plan.problems,
        [Problem::NoNetwork {
            name: "u".to_owned(),
            need: Need::Unknown
        }]
    );
}

#[test]
fn mesh_is_impossible_for_classic_init_containers() {
    let mut u = user("u");
    u.need = Need::Mesh;
    let items = vec![u, item("istio-init", Role::LateCapture)];
    let plan = plan(&items, Capture::ByInit, ProxyPlace::Main);
    assert_eq!(
        plan.problems,
        [Problem::NoNetwork {
            name: "u".to_owned(),
            need: Need::Mesh
        }]
    );
}

#[test]
fn direct_under_cni_goes_through_the_proxy_and_says_so() {
    let mut u = user("u");
    u.need = Need::Direct;
    let items = vec![
        u,
        item("istio-validation", Role::Validation),
        item("istio-proxy", Role::Proxy),
    ];
    let plan = plan(&items, Capture::Sandbox, ProxyPlace::Native);
    assert_eq!(names(&items, &plan), "istio-validation istio-proxy u");
    assert_eq!(plan.problems, [Problem::NotDirect { name: "u".to_owned() }]);
}

#[test]
fn planning_twice_changes_nothing() {
    let mut migrate = user("migrate");
    migrate.need = Need::Direct;
    let mut last = user("last");
    last.start_after = vec!["other".to_owned()];
    let items = native(vec![last, migrate, user("other")]);
    let once: Vec<Item> = plan_native(&items)
        .order
        .iter()
        .map(|i| items[*i].clone())
        .collect();
    assert_eq!(plan_native(&once).order, (0..once.len()).collect::<Vec<_>>());
}

#[test]
fn main_containers_keep_their_order_unless_declared() {
    let mut a = user("a");
    a.start_after = vec!["b".to_owned()];
    let items = vec![a, user("b"), user("c")];
    assert_eq!(names(&items, &plan_main(&items)), "b a c");
}

/// Longer than the stack of a thread would allow for one call frame a container.
const CHAIN: usize = 20_000;

/// Each container starts after the next one of the list, so the usual order is turned around.
fn chain() -> Vec<Item> {
    let link = |index: usize| {
        let mut link = user(&format!("c{index}"));
        if index + 1 < CHAIN {
            link.start_after = vec![format!("c{}", index + 1)];
        }
        link
    };
    (0..CHAIN).map(link).collect()
}

#[test]
fn a_long_chain_of_constraints_is_planned_without_recursion() {
    let mut items = chain();
    for plan in [plan_native(&items), plan_main(&items)] {
        assert!(plan.order.iter().copied().eq((0..CHAIN).rev()));
        assert!(
            !plan
                .problems
                .iter()
                .any(|p| matches!(p, Problem::Contradiction { .. }))
        );
    }
    // The last one closes the chain to a cycle, which is named as a whole.
    items[CHAIN - 1].start_after = vec!["c0".to_owned()];
    let closed = plan_main(&items);
    assert!(closed.order.iter().copied().eq(0..CHAIN));
    let [Problem::Contradiction { cycle }] = &closed.problems[..] else {
        panic!("{} problems", closed.problems.len())
    };
    assert_eq!(cycle.len(), CHAIN + 1);
    assert_eq!((cycle[0].as_str(), cycle[1].as_str()), ("c0", "c19999"));
    assert_eq!(cycle[CHAIN], "c0");
}
