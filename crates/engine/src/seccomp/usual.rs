//! The usual filter: what container runtimes deny to programs that do not have the capability for it.
//!
//! Written as what is denied. Calls that are newer than this table do not exist as far as the program can see, so
//! that C libraries fall back to older ones.

use super::{Filters, Rules, SeccompError, filter, names};
use crate::container::Capabilities;
use seccompiler::{SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};
use serde_json::{Value, json};
use std::ffi::c_int;

/// Denied whatever the capabilities: obsolete, or acting on the kernel as a whole.
#[rustfmt::skip]
const NEVER: &[&str] = &[
    "add_key", "get_kernel_syms", "io_uring_enter", "io_uring_register", "io_uring_setup", "kexec_file_load",
    "kexec_load", "keyctl", "migrate_pages", "nfsservctl", "query_module", "request_key", "sysfs", "_sysctl",
    "uselib", "userfaultfd", "ustat", "vm86", "vm86old", "create_module",
];

/// Denied without one of these capabilities.
#[rustfmt::skip]
const NEED: &[(&[&str], &[&str])] = &[
    (&["SYS_ADMIN"], &[
        "fanotify_init", "fsconfig", "fsmount", "fsopen", "fspick", "lookup_dcookie", "mount", "mount_setattr",
        "move_mount", "open_tree", "pivot_root", "quotactl", "quotactl_fd", "setdomainname", "sethostname", "setns",
        "umount", "umount2", "unshare",
    ]),
    (&["SYS_ADMIN", "BPF"], &["bpf"]),
    (&["SYS_ADMIN", "PERFMON"], &["perf_event_open"]),
    (&["SYS_ADMIN", "SYSLOG"], &["syslog"]),
    (&["DAC_READ_SEARCH"], &["open_by_handle_at"]),
    (&["SYS_BOOT"], &["reboot"]),
    (&["SYS_CHROOT"], &["chroot"]),
    (&["SYS_MODULE"], &["delete_module", "init_module", "finit_module"]),
    (&["SYS_PACCT"], &["acct", "swapon", "swapoff"]),
    (&["SYS_PTRACE"], &["kcmp", "pidfd_getfd", "process_madvise"]),
    (&["SYS_RAWIO"], &["iopl", "ioperm"]),
    (&["SYS_TIME"], &["settimeofday", "stime", "clock_settime", "clock_adjtime"]),
    (&["SYS_TTY_CONFIG"], &["vhangup"]),
    (&["SYS_NICE"], &["get_mempolicy", "mbind", "set_mempolicy", "set_mempolicy_home_node", "move_pages"]),
];

/// Ways of running old programs that are harmless; the last asks which one is in force.
const PERSONALITIES: [u64; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];
/// Flags that make namespaces.
const NAMESPACES: [c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];
/// Sockets to the host of a virtual machine, which no namespace holds back.
const AF_VSOCK: u64 = 40;

pub(super) fn filters(capabilities: Capabilities) -> Result<Filters, SeccompError> {
    let denied = denied(capabilities);
    let mut rules: Rules = denied
        .iter()
        .filter_map(|name| names::number(name))
        .map(|number| (number, Vec::new()))
        .collect();
    rules.insert(
        libc::SYS_personality,
        vec![all(PERSONALITIES.map(|p| (SeccompCmpOp::Ne, p)))?],
    );
    rules.insert(libc::SYS_socket, vec![all([(SeccompCmpOp::Eq, AF_VSOCK)])?]);
    let mut filters = vec![newer_than_known()];
    if !capabilities.has("SYS_ADMIN") {
        rules.insert(libc::SYS_clone, new_namespaces()?);
        // Its flags are in memory, where a filter cannot look; C libraries go on with the older call.
        let clone3 = Rules::from([(libc::SYS_clone3, Vec::new())]);
        filters.push(filter(clone3, errno(libc::ENOSYS), SeccompAction::Allow)?);
    }
    filters.push(filter(rules, errno(libc::EPERM), SeccompAction::Allow)?);
    Ok(filters)
}

/// What is denied whatever the arguments are.
fn denied(capabilities: Capabilities) -> Vec<&'static str> {
    let mut denied: Vec<&str> = NEVER.to_vec();
    for (any_of, calls) in NEED {
        if !any_of.iter().any(|name| capabilities.has(name)) {
            denied.extend(*calls);
        }
    }
    denied
}

/// The same in OCI's form. Runtimes take several conditions on one argument for alternatives, so what
/// `personality` may be given is left out.
pub(super) fn oci(capabilities: Capabilities) -> Value {
    let refused = |names: Vec<&str>, errno: c_int, args: Value| json!({"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": errno, "args": args});
    let vsock = json!([{"index": 0, "value": AF_VSOCK, "op": "SCMP_CMP_EQ"}]);
    let mut entries = vec![
        refused(denied(capabilities), libc::EPERM, json!([])),
        refused(vec!["socket"], libc::EPERM, vsock),
    ];
    if !capabilities.has("SYS_ADMIN") {
        entries.push(refused(vec!["clone3"], libc::ENOSYS, json!([])));
        for flag in NAMESPACES {
            let bit = flag.cast_unsigned();
            let args = json!([{"index": 0, "value": bit, "valueTwo": bit, "op": "SCMP_CMP_MASKED_EQ"}]);
            entries.push(refused(vec!["clone"], libc::EPERM, args));
        }
    }
    json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": entries})
}

/// Conditions on the first argument that must all hold.
fn all<const N: usize>(conditions: [(SeccompCmpOp, u64); N]) -> Result<SeccompRule, SeccompError> {
    let wrong = |e: seccompiler::BackendError| SeccompError::Compile(e.to_string());
    let conditions: Result<Vec<_>, _> = conditions
        .into_iter()
        .map(|(op, value)| SeccompCondition::new(0, SeccompCmpArgLen::Dword, op, value))
        .collect();
    SeccompRule::new(conditions.map_err(wrong)?).map_err(wrong)
}

/// One rule for each flag that would make a namespace.
fn new_namespaces() -> Result<Vec<SeccompRule>, SeccompError> {
    let rule = |flag: c_int| {
        let bit = u64::from(flag.cast_unsigned());
        all([(SeccompCmpOp::MaskedEq(bit), bit)])
    };
    NAMESPACES.into_iter().map(rule).collect()
}

pub(super) fn errno(number: c_int) -> SeccompAction {
    SeccompAction::Errno(number.cast_unsigned())
}

/// Answers that a call does not exist when its number is greater than any this table knows.
pub(super) fn newer_than_known() -> Vec<libc::sock_filter> {
    let word = |code: u32, jt: u8, k: u32| libc::sock_filter {
        code: u16::try_from(code).unwrap_or_default(),
        jt,
        jf: 0,
        k,
    };
    let greatest = u32::try_from(names::greatest()).unwrap_or(u32::MAX);
    vec![
        word(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        word(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, 1, greatest),
        word(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
        word(
            libc::BPF_RET | libc::BPF_K,
            0,
            libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned(),
        ),
    ]
}
