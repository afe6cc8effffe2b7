use super::{Plan, container};
use crate::container::{Mount, MountKind, Root, Spec};
use crate::sandbox::{Processes, Sandbox, SandboxSpec};
use crate::sys::Op;
use crate::sys::op::{FileOp, Slot};
use crate::sys::walk::Links;
use crate::users::{UserNamespace, Users};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Specs with every combination of what decides about files.
async fn plans() -> Vec<(String, Plan)> {
    let mut plans = Vec::new();
    for (processes, own) in [
        (Processes::Container, false),
        (Processes::Host, false),
        (Processes::Container, true),
        (Processes::Pod, true),
    ] {
        let mut sandbox = SandboxSpec {
            processes,
            ..SandboxSpec::default()
        };
        if own {
            let ids = Users::default().ids().unwrap();
            let users = UserNamespace::create(ids, "plan", &[]).await.unwrap();
            sandbox.network = Some(users.network().clone());
            sandbox.users = Some(users);
        }
        let sandbox = Sandbox::create(&sandbox).await.unwrap();
        for bits in 0..16u8 {
            let is = |bit: u8| bits >> bit & 1 == 1;
            if own && is(0) {
                continue;
            }
            let root = if own {
                Root::Overlay {
                    lower: vec!["/a/1".into(), "/a/2".into()],
                    upper: "/b/upper".into(),
                    work: "/b/work".into(),
                }
            } else {
                Root::Bind("/".into())
            };
            let mut spec = Spec::new("plan", root, &["true"], Arc::clone(&sandbox));
            spec.privileged = is(0);
            spec.readonly_root = is(1);
            let special = is(2).then_some(["/sys", "/dev", "/dev/shm"]);
            for target in special.into_iter().flatten() {
                spec.mounts.push(Mount::bind("/", target));
            }
            spec.mounts.push(Mount {
                target: "/data".into(),
                kind: MountKind::Bind {
                    source: "/".into(),
                    within: is(3).then(|| "part".into()),
                },
                readonly: is(3),
            });
            spec.mounts.push(Mount::tmpfs("/memory", None));
            plans.push((
                format!("{processes:?} {own} {bits:04b}"),
                container(&spec).unwrap(),
            ));
        }
    }
    plans
}

fn files(plan: &Plan) -> impl Iterator<Item = &FileOp> {
    plan.before
        .ops
        .iter()
        .chain(&plan.steps.ops)
        .filter_map(|op| match op {
            Op::Files(op) => Some(op),
            _ => None,
        })
}

fn fills(op: &FileOp) -> Option<Slot> {
    match op {
        FileOp::New { slot, .. }
        | FileOp::Tree { slot, .. }
        | FileOp::Null { slot }
        | FileOp::Target { slot, .. } => Some(*slot),
        _ => None,
    }
}

#[tokio::test]
async fn a_descriptor_is_there_before_it_is_used() {
    for (name, plan) in plans().await {
        let mut there = BTreeSet::new();
        for op in files(&plan) {
            let used = match op {
                FileOp::Attach { slot, target } => vec![*slot, *target],
                FileOp::Expect { slot, .. }
                | FileOp::Avoid { slot, .. }
                | FileOp::AttachAt { slot, .. }
                | FileOp::Enter { slot } => vec![*slot],
                FileOp::Cover { below, .. } | FileOp::Link { below, .. } => vec![*below],
                FileOp::Target { below, like, .. } => below.iter().chain(like).copied().collect(),
                _ => Vec::new(),
            };
            assert!(used.iter().all(|slot| there.contains(slot)), "{name}: {op:?}");
            if let Some(slot) = fills(op) {
                assert!(slot < plan.steps.slots && there.insert(slot), "{name}: {op:?}");
            }
        }
    }
}

/// Special directories are real ones, and what is covered is covered before the pod's own mounts come.
#[tokio::test]
async fn no_link_leads_a_file_system_of_the_kernel() {
    for (name, plan) in plans().await {
        let made: BTreeSet<Slot> = files(&plan)
            .filter_map(|op| match op {
                FileOp::New { kind, slot, .. } if kind.to_bytes() != b"tmpfs" => Some(*slot),
                _ => None,
            })
            .collect();
        let mut attached = 0;
        for op in files(&plan) {
            let FileOp::Attach { slot, target } = op else {
                continue;
            };
            if !made.contains(slot) {
                continue;
            }
            attached += 1;
            let place = files(&plan).find(|op| fills(op) == Some(*target));
            assert!(
                matches!(
                    place,
                    Some(FileOp::Target {
                        links: Links::Refused,
                        ..
                    })
                ),
                "{name}: {place:?}"
            );
        }
        assert_eq!(attached, made.len(), "{name}");
    }
}

#[tokio::test]
async fn descriptors_are_closed_before_the_working_directory_is_entered() {
    for (name, plan) in plans().await {
        let place = |wanted: fn(&Op) -> bool| plan.steps.ops.iter().position(wanted).unwrap();
        let closed = place(|op| matches!(op, Op::CloseOthers { .. }));
        let entered = place(|op| matches!(op, Op::Files(FileOp::WorkingDirectory(_))));
        let last = place(|op| matches!(op, Op::Files(FileOp::DetachOldRoot)));
        assert!(last < closed && closed < entered, "{name}");
    }
}

/// What is this machine's is taken by root of this machine, with other ids but for devices; everything that a container
/// can lead elsewhere happens as root of the pod.
#[tokio::test]
async fn a_process_with_users_of_its_own_has_no_power_where_the_image_decides() {
    for (name, plan) in plans().await.iter().filter(|(name, _)| name.contains("true")) {
        let users = plan.users.unwrap();
        let joins =
            |op: &Op| matches!(op, Op::Join { fd, kinds } if (*fd, *kinds) == (users, libc::CLONE_NEWUSER));
        let joined = plan.before.ops.iter().position(joins).unwrap();
        let (taken, after) = plan.before.ops.split_at(joined);
        assert!(
            matches!(after, [_, Op::Groups(groups), Op::Gid(0), Op::Uid(0), Op::Undumpable] if groups.is_empty()),
            "{name}: {after:?}"
        );
        for op in taken {
            if let Op::Files(FileOp::Tree {
                source, users: map, ..
            }) = op
            {
                let source = source.to_str().unwrap();
                let overlay = source == "/b/upper";
                assert_eq!(
                    map.is_none(),
                    source.starts_with("/dev/") || overlay,
                    "{name}: {source}"
                );
            }
            let followed = matches!(
                op,
                Op::Files(FileOp::Target { .. } | FileOp::Attach { .. } | FileOp::New { .. })
            );
            assert!(!followed, "{name}: {op:?}");
        }
        let outside = |op: &Op| {
            matches!(
                op,
                Op::Files(FileOp::Tree { .. } | FileOp::Mount { .. } | FileOp::Chdir(_))
                    | Op::WriteFile { .. }
            )
        };
        let late: Vec<&Op> = plan.steps.ops.iter().filter(|op| outside(op)).collect();
        assert!(
            matches!(late.as_slice(), [Op::Files(FileOp::Chdir(root))] if root.as_c_str() == c"/"),
            "{name}: {late:?}"
        );
        assert_eq!(plan.between, libc::CLONE_NEWNS);
        assert_ne!(plan.namespaces & libc::CLONE_NEWNS, 0);
    }
}
