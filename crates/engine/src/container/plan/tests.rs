use super::{Plan, container};
use crate::container::{Mount, MountKind, Process, Root, Seccomp, Spec, StartError};
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

/// A plan for what was made of the usual spec.
async fn planned(sandbox: &SandboxSpec, change: impl FnOnce(&mut Spec)) -> Result<Plan, StartError> {
    let sandbox = Sandbox::create(sandbox).await.unwrap();
    let mut spec = Spec::new("plan", Root::Bind("/".into()), &["true"], sandbox);
    change(&mut spec);
    container(&spec)
}

async fn usual(change: impl FnOnce(&mut Spec)) -> Plan {
    planned(&SandboxSpec::default(), change).await.unwrap()
}

fn has(plan: &Plan, name: &str) -> bool {
    plan.steps.names.iter().any(|step| step == name)
}

const RDONLY: u64 = libc::MOUNT_ATTR_RDONLY;
const NODEV: u64 = libc::MOUNT_ATTR_NODEV;

#[tokio::test]
async fn devices_in_the_root_work_for_privileged_containers_only() {
    for (privileged, readonly, expected) in [
        (false, false, Some(NODEV)),
        (false, true, Some(NODEV | RDONLY)),
        (true, true, Some(RDONLY)),
        (true, false, None),
    ] {
        let plan = usual(|spec| (spec.privileged, spec.readonly_root) = (privileged, readonly)).await;
        let found = files(&plan).find_map(|op| match op {
            FileOp::ProtectRoot { attributes } => Some(*attributes),
            _ => None,
        });
        assert_eq!(found, expected, "privileged {privileged}, read-only {readonly}");
    }
}

#[tokio::test]
async fn mounts_of_the_machine_stay_the_machines() {
    let plan = usual(|_| ()).await;
    let first = files(&plan).next();
    let private = libc::MS_REC | libc::MS_PRIVATE;
    assert!(
        matches!(first, Some(FileOp::Propagation(flags)) if *flags == private),
        "{first:?}"
    );
    assert_eq!(plan.namespaces & libc::CLONE_NEWNS, libc::CLONE_NEWNS);
}

#[tokio::test]
async fn mounts_have_the_requested_attributes_and_no_devices() {
    for (privileged, readonly) in [(false, false), (false, true), (true, false), (true, true)] {
        let plan = usual(|spec| {
            spec.privileged = privileged;
            spec.mounts.push(Mount {
                readonly,
                ..Mount::bind("/srv", "/data")
            });
            spec.mounts.push(Mount {
                readonly,
                ..Mount::tmpfs("/memory", Some(4096))
            });
        })
        .await;
        let wanted = if readonly { RDONLY } else { 0 };
        let bind = files(&plan).find_map(|op| match op {
            FileOp::Tree {
                source,
                attributes,
                no_devices,
                recursive,
                ..
            } if source.to_bytes() == b"/srv" => Some((*attributes, *no_devices, *recursive)),
            _ => None,
        });
        assert_eq!(bind, Some((wanted, !privileged, true)));
        let memory = files(&plan).find_map(|op| match op {
            FileOp::New {
                attributes, options, ..
            } if options.iter().any(|(_, v)| v.as_deref() == Some(c"4096")) => Some(*attributes),
            _ => None,
        });
        assert_eq!(memory, Some(wanted | libc::MOUNT_ATTR_NOSUID | NODEV));
    }
}

#[tokio::test]
async fn nothing_is_mounted_in_proc_but_what_may_be_covered() {
    let mount = async |target: &'static str| {
        planned(&SandboxSpec::default(), |spec| {
            spec.mounts.push(Mount::bind("/srv", target));
        })
        .await
    };
    for target in ["/proc", "/proc/sys", "/proc/cpuinfo/x", "/a/../proc", "relative"] {
        let outcome = mount(target).await;
        assert!(
            matches!(outcome, Err(StartError::Invalid { .. })),
            "{target}: {outcome:?}"
        );
    }
    for (target, avoided) in [("/proc/cpuinfo", false), ("/data", true), ("/process", true)] {
        let plan = mount(target).await.unwrap();
        assert!(has(&plan, &format!("mount {target}")), "{target}");
        // A link of the image may lead there all the same.
        let checked = has(&plan, &format!("mount {target}: the mount point is in /proc"));
        assert_eq!(checked, avoided, "{target}");
    }
}

/// What is mounted of the kernel, by the names of steps.
fn kernel_mounts(plan: &Plan) -> Vec<&str> {
    let all = ["/proc", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", "/sys"];
    all.into_iter()
        .filter(|target| has(plan, &format!("mount {target}")))
        .collect()
}

#[tokio::test]
async fn a_container_gets_file_systems_of_the_kernel_unless_it_brings_its_own() {
    let plan = usual(|_| ()).await;
    let all = ["/proc", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", "/sys"];
    assert_eq!(kernel_mounts(&plan), all);
    assert!(all.iter().all(|target| !has(&plan, &format!("take {target}"))));
    assert!(has(&plan, "mount /dev/null") && has(&plan, "link /dev/fd"));
    let plan = usual(|spec| spec.privileged = true).await;
    assert_eq!(kernel_mounts(&plan), ["/proc", "/dev", "/sys"]);
    assert!(has(&plan, "take /dev") && !has(&plan, "mount /dev/null"));
    let plan = usual(|spec| spec.mounts.push(Mount::bind("/srv", "/dev/shm"))).await;
    assert!(!has(&plan, "make a tmpfs for /dev/shm") && has(&plan, "make a tmpfs for /dev"));
    let shared = SandboxSpec {
        host_ipc: true,
        processes: Processes::Host,
        ..SandboxSpec::default()
    };
    let plan = planned(&shared, |_| ()).await.unwrap();
    assert_eq!(
        kernel_mounts(&plan),
        ["/proc", "/dev", "/dev/pts", "/dev/shm", "/sys"]
    );
    assert!(has(&plan, "take /proc") && !has(&plan, "make a proc for /proc"));
    assert_eq!(plan.namespaces & libc::CLONE_NEWPID, 0);
}

#[tokio::test]
async fn sysfs_can_be_written_to_by_privileged_containers_only() {
    for privileged in [false, true] {
        let network = remora_net::Namespace::create().unwrap();
        let sandbox = SandboxSpec {
            network: Some(network),
            ..SandboxSpec::default()
        };
        let plan = planned(&sandbox, |spec| spec.privileged = privileged)
            .await
            .unwrap();
        let found = files(&plan).find_map(|op| match op {
            FileOp::New { kind, attributes, .. } if kind.to_bytes() == b"sysfs" => Some(*attributes),
            _ => None,
        });
        let quiet = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC | NODEV;
        assert_eq!(found, Some(if privileged { quiet } else { quiet | RDONLY }));
    }
}

#[tokio::test]
async fn parts_of_proc_and_sys_are_covered_unless_the_container_is_privileged() {
    let covered = |plan: &Plan| -> BTreeSet<String> {
        let names = plan.steps.names.iter().zip(&plan.steps.ops);
        names
            .filter_map(|(name, op)| match op {
                Op::Files(FileOp::Cover { magic, .. }) => {
                    let expected = if name.contains("/proc/") {
                        0x9fa0
                    } else {
                        0x6265_6572
                    };
                    assert_eq!(*magic, expected, "{name}");
                    Some(name.clone())
                }
                _ => None,
            })
            .collect()
    };
    let hidden = super::kernel::masked()
        .into_iter()
        .map(|path| format!("hide {path}"));
    let protected = super::kernel::PROTECTED.map(|path| format!("make {path} read-only"));
    let all: BTreeSet<String> = hidden.chain(protected).collect();
    assert!(all.contains("hide /proc/kcore") && all.contains("hide /sys/firmware"));
    // Not every machine has it, so no container of a test can show that it is hidden.
    assert!(all.contains("hide /sys/devices/virtual/powercap"));
    let plan = usual(|_| ()).await;
    assert_eq!(covered(&plan), all);
    let checked = ["/proc", "/sys"].map(|root| has(&plan, &format!("check what is mounted at {root}")));
    assert_eq!(checked, [true; 2]);
    // Also where the pod mounts the machine's own sysfs, and only there.
    let plan = usual(|spec| spec.mounts.push(Mount::bind("/sys", "/sys"))).await;
    assert_eq!(covered(&plan), all);
    assert!(
        !has(&plan, "check what is mounted at /sys"),
        "it may be something else"
    );
    let plan = usual(|spec| spec.mounts.push(Mount::bind("/sys", "/data"))).await;
    let covers = files(&plan)
        .filter(|op| matches!(op, FileOp::Cover { .. }))
        .count();
    assert_eq!(covers, all.len());
    assert_eq!(
        covered(&usual(|spec| spec.privileged = true).await),
        BTreeSet::new()
    );
}

/// The names of the steps that take power away, in order.
fn rights(plan: &Plan) -> Vec<&str> {
    let start = plan
        .steps
        .names
        .iter()
        .position(|name| name == "start a session")
        .unwrap();
    plan.steps.names[start..].iter().map(String::as_str).collect()
}

#[tokio::test]
async fn power_is_taken_away_in_the_one_order_that_works() {
    let plan = async |no_new_privileges: bool| {
        usual(|spec| {
            spec.seccomp = Seccomp::RuntimeDefault;
            spec.process.no_new_privileges = no_new_privileges;
            (spec.process.uid, spec.process.gid) = (7, 8);
        })
        .await
    };
    let without = |plan: &Plan| -> Vec<String> {
        // The number of filters, and groups in a user namespace, are those of the machine.
        let mut names: Vec<String> = rights(plan).into_iter().map(str::to_owned).collect();
        names.dedup();
        names.retain(|name| name != "set groups");
        names
    };
    let usual = plan(false).await;
    assert_eq!(
        without(&usual),
        [
            "start a session",
            "set the umask",
            "limit capabilities",
            "filter system calls",
            "keep capabilities",
            "become group 8",
            "become user 7",
            "set capabilities",
            "bind to the parent",
            "close files",
        ]
    );
    let strict = plan(true).await;
    assert_eq!(
        without(&strict),
        [
            "start a session",
            "set the umask",
            "limit capabilities",
            "keep capabilities",
            "become group 8",
            "become user 7",
            "set capabilities",
            "forbid new privileges",
            "bind to the parent",
            "close files",
            "filter system calls",
        ]
    );
    let wanted = Process::new(Vec::new()).capabilities.bits();
    for plan in [usual, strict] {
        for op in &plan.steps.ops {
            let found = match op {
                Op::Bounding(set) => *set,
                Op::Capabilities {
                    permitted,
                    inheritable: 0,
                } => *permitted,
                _ => continue,
            };
            assert_eq!(found, wanted & crate::sys::own_capabilities());
        }
        assert_eq!(plan.owner, (7, 8));
    }
}

#[tokio::test]
async fn layers_are_named_from_the_directory_above_them_and_escaped() {
    let overlay = async |lower: &[&str]| {
        let root = Root::Overlay {
            lower: lower.iter().map(Into::into).collect(),
            upper: "/u,p".into(),
            work: "/w:k".into(),
        };
        planned(&SandboxSpec::default(), |spec| spec.root = root).await
    };
    let data = |plan: &Plan| {
        files(plan).find_map(|op| match op {
            FileOp::Mount { data, .. } => Some(data.to_str().unwrap().to_owned()),
            _ => None,
        })
    };
    let plan = overlay(&["/s/a:1/fs", "/s/b\\2/fs"]).await.unwrap();
    assert!(has(&plan, "change to /s"));
    assert_eq!(
        data(&plan).unwrap(),
        r"userxattr,lowerdir=a\:1/fs:b\\2/fs,upperdir=/u\,p,workdir=/w\:k"
    );
    let plan = overlay(&["/s/a", "/s"]).await.unwrap();
    assert_eq!(
        data(&plan).unwrap(),
        r"userxattr,lowerdir=a:.,upperdir=/u\,p,workdir=/w\:k"
    );
    for (lower, why) in [(&[][..], "absolute"), (&["a/b"], "absolute")] {
        let error = overlay(lower).await.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    // What the kernel takes, to the byte.
    let rest = "userxattr,lowerdir=".len() + r",upperdir=/u\,p,workdir=/w\:k".len();
    let fits = format!("/s/{}", "l".repeat(4095 - rest));
    assert!(overlay(&[&fits]).await.is_ok());
    let error = overlay(&[&format!("{fits}l")]).await.unwrap_err().to_string();
    assert!(error.contains("too many"), "{error}");
}

#[test]
fn the_first_process_of_a_pod_has_processes_of_its_own_and_ends_with_us() {
    let plan = Plan::init(None);
    assert_eq!(plan.namespaces, libc::CLONE_NEWPID);
    assert_eq!(
        plan.steps.names,
        ["reset signals", "hide from others", "bind to the parent"]
    );
    let launch = plan.into_launch();
    assert_eq!((launch.namespaces, launch.ops.len()), (libc::CLONE_NEWPID, 3));
    assert!(!launch.unguarded && launch.program.is_none());
}

#[tokio::test]
async fn terminals_are_made_below_the_root_that_the_container_will_have() {
    assert_eq!(usual(|_| ()).await.terminals, std::path::PathBuf::from("/"));
}

#[test]
fn a_step_goes_after_another_or_to_the_end() {
    let mut steps = super::Steps::default();
    steps.push("a", Op::Session);
    steps.push("b", Op::Session);
    steps.after("a", "after a", Op::Terminal);
    steps.after("none", "last", Op::Undumpable);
    steps.insert("first", Op::CloseOnExec);
    assert_eq!(steps.names, ["first", "a", "after a", "b", "last"]);
    let places = [
        Op::CloseOnExec,
        Op::Session,
        Op::Terminal,
        Op::Session,
        Op::Undumpable,
    ];
    let shown = |ops: &[Op]| format!("{ops:?}");
    assert_eq!(shown(&steps.ops), shown(&places));
}

#[tokio::test]
async fn another_runtime_finds_the_root_mounted_for_it_alone() {
    let sandbox = Sandbox::create(&SandboxSpec::default()).await.unwrap();
    let spec = Spec::new("plan", Root::Bind("/srv".into()), &["true"], sandbox);
    let args = || vec!["runc".to_owned(), "run".to_owned()];
    let plan = super::runtime("plan", Some((&spec, "/at".into())), args()).unwrap();
    assert!(plan.unguarded);
    assert_eq!(plan.namespaces, libc::CLONE_NEWNS);
    let slave = libc::MS_REC | libc::MS_SLAVE;
    let first = files(&plan).next();
    assert!(
        matches!(first, Some(FileOp::Propagation(flags)) if *flags == slave),
        "{first:?}"
    );
    let at =
        files(&plan).any(|op| matches!(op, FileOp::AttachAt { target, .. } if target.to_bytes() == b"/at"));
    assert!(at && has(&plan, "take the root /srv"));
    assert_eq!(plan.program.unwrap().args.len(), 2);
    let plan = super::runtime("plan", None, args()).unwrap();
    assert_eq!((plan.namespaces, files(&plan).count()), (0, 0));
    assert!(plan.unguarded && has(&plan, "close files"));
}

#[tokio::test]
async fn a_process_has_the_home_that_its_root_lists_unless_it_is_said() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("etc")).unwrap();
    let users = "u:x:7:7::/home/u:/bin/sh\nempty:x:8:8:::/bin/sh\n";
    std::fs::write(dir.path().join("etc/passwd"), users).unwrap();
    for (uid, said, expected) in [
        (7, None, "HOME=/home/u"),
        (8, None, "HOME=/"),
        (9, None, "HOME=/"),
        (7, Some("/said"), "HOME=/said"),
    ] {
        let plan = usual(|spec| {
            spec.root = Root::Bind(dir.path().to_owned());
            spec.process.uid = uid;
            let said = said.map(|home| ("HOME".to_owned(), home.to_owned()));
            spec.process.env.extend(said);
        })
        .await;
        let env = plan.program.unwrap().env;
        let homes: Vec<&str> = env.iter().filter_map(|pair| pair.to_str().ok()).collect();
        let homes: Vec<&str> = homes
            .into_iter()
            .filter(|pair| pair.starts_with("HOME="))
            .collect();
        assert_eq!(homes, [expected], "{uid}");
    }
}
