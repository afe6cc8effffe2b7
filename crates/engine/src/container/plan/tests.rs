use super::{Plan, container};
use crate::container::{Mount, MountKind, Root, Spec};
use crate::sandbox::{Processes, Sandbox, SandboxSpec};
use crate::sys::Op;
use crate::sys::op::{FileOp, Slot};
use crate::sys::walk::Links;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Specs with every combination of what decides about files.
async fn plans() -> Vec<(String, Plan)> {
    let mut plans = Vec::new();
    for processes in [Processes::Container, Processes::Host] {
        let sandbox = SandboxSpec {
            processes,
            ..SandboxSpec::default()
        };
        let sandbox = Sandbox::create(&sandbox).await.unwrap();
        for bits in 0..16u8 {
            let is = |bit: u8| bits >> bit & 1 == 1;
            let root = Root::Bind("/".into());
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
            plans.push((format!("{processes:?} {bits:04b}"), container(&spec).unwrap()));
        }
    }
    plans
}

fn files(plan: &Plan) -> impl Iterator<Item = &FileOp> {
    plan.steps.ops.iter().filter_map(|op| match op {
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
                FileOp::Expect { slot, .. } | FileOp::Avoid { slot, .. } | FileOp::AttachAt { slot, .. } => {
                    vec![*slot]
                }
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
