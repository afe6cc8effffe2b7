//! A user namespace, and what belongs to it.

use super::{IDS, Ids};
use crate::container::StartError;
use crate::container::plan::Plan;
use crate::container::process::Starting;
use crate::sandbox::is_of_ipc;
use crate::sys;
use remora_net::Namespace;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

/// A user namespace with network, ipc and uts namespaces of its own. They live as long as this value or a process in
/// them.
#[derive(Debug)]
pub struct UserNamespace {
    ids: Ids,
    user: OwnedFd,
    network: Namespace,
    uts: Arc<OwnedFd>,
    ipc: Arc<OwnedFd>,
}

impl UserNamespace {
    /// Makes one with these ids and this name of the machine. Of the settings only those of the ipc namespace are set:
    /// the kernel lets nobody but root of the namespace write them.
    pub async fn create(
        ids: Ids,
        hostname: &str,
        sysctls: &[(String, String)],
    ) -> Result<Arc<Self>, StartError> {
        let failed = |source| StartError::Sandbox { source };
        let (wait, go) = sys::pipe().map_err(failed)?;
        let of_ipc = sysctls.iter().filter(|(name, _)| is_of_ipc(name));
        let plan = Plan::users(hostname, of_ipc, Arc::new(wait))?;
        // A process, because a thread cannot have a user namespace that its process does not have.
        let starting = Starting::begin("sandbox", plan).await?;
        let mapped = map(starting.pid(), &ids).and_then(|()| sys::write(&go, b"x"));
        mapped.map_err(failed)?;
        // It ends with this value: the descriptors keep the namespaces.
        let child = starting.finish().await?;
        let open = |kind: &str| namespace_of(child.pid(), kind).map_err(failed);
        Ok(Arc::new(Self {
            user: open("user")?,
            network: open("net")?.into(),
            uts: Arc::new(open("uts")?),
            ipc: Arc::new(open("ipc")?),
            ids,
        }))
    }

    /// Which ids of this machine stand for its own.
    pub fn ids(&self) -> &Ids {
        &self.ids
    }

    /// The network that belongs to it.
    pub fn network(&self) -> &Namespace {
        &self.network
    }

    /// (kind, descriptor) of what belongs to it besides the network.
    pub(crate) fn others(&self) -> Vec<(i32, Arc<OwnedFd>)> {
        vec![
            (libc::CLONE_NEWUTS, Arc::clone(&self.uts)),
            (libc::CLONE_NEWIPC, Arc::clone(&self.ipc)),
        ]
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.user.as_raw_fd()
    }
}

impl AsFd for UserNamespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.user.as_fd()
    }
}

fn namespace_of(pid: u32, kind: &str) -> io::Result<OwnedFd> {
    Ok(File::open(format!("/proc/{pid}/ns/{kind}"))?.into())
}

fn map(pid: u32, ids: &Ids) -> io::Result<()> {
    let line = format!("0 {} {IDS}\n", ids.first());
    for file in ["uid_map", "gid_map"] {
        std::fs::write(format!("/proc/{pid}/{file}"), &line)?;
    }
    Ok(())
}
