//! A netlink socket.

use super::read::{Attributes, Message, Messages};
use super::write::Writer;
use super::{HEADER_LENGTH, NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, aligned};
use crate::sys;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

const SOL_NETLINK: i32 = 270;
const NETLINK_CAP_ACK: i32 = 10;
const NETLINK_EXT_ACK: i32 = 11;
const NETLINK_GET_STRICT_CHK: i32 = 12;

/// The netlink family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Links, addresses, routes, rules.
    Route,
    /// nftables.
    Netfilter,
    /// Sockets of the namespace (`sock_diag`).
    SocketDiagnosis,
}

/// The kernel refused a request.
#[derive(Debug, thiserror::Error)]
#[error("{}{}", io::Error::from_raw_os_error(*errno), message.as_ref().map(|text| format!(" ({text})")).unwrap_or_default())]
pub struct KernelError {
    /// The kernel's `errno`.
    pub errno: i32,
    /// The sequence number of the refused request, which identifies it within a batch.
    pub sequence: u32,
    /// The kernel's extended error message, if it sent one.
    pub message: Option<String>,
    /// Offset of the rejected attribute in the request, if the kernel reports it.
    pub offset: Option<u32>,
}

impl KernelError {
    /// An error of the socket itself.
    fn local(error: &io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Self {
            errno,
            sequence: 0,
            message: Some("netlink socket".into()),
            offset: None,
        }
    }

    /// Whether a privilege is missing.
    pub const fn is_permission(&self) -> bool {
        matches!(self.errno, libc::EPERM | libc::EACCES)
    }

    /// Whether the object exists already.
    pub const fn exists(&self) -> bool {
        self.errno == libc::EEXIST
    }

    /// Whether the object does not exist.
    pub const fn is_missing(&self) -> bool {
        matches!(
            self.errno,
            libc::ENOENT | libc::ESRCH | libc::ENODEV | libc::EADDRNOTAVAIL
        )
    }
}

/// A netlink socket. It stays bound to the network namespace it was opened in.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    buffer: Vec<u8>,
    sequence: u32,
}

impl Socket {
    /// Opens a socket in the calling thread's namespace.
    pub fn open(protocol: Protocol) -> io::Result<Self> {
        let number = match protocol {
            Protocol::Route => libc::NETLINK_ROUTE,
            Protocol::Netfilter => libc::NETLINK_NETFILTER,
            Protocol::SocketDiagnosis => libc::NETLINK_SOCK_DIAG,
        };
        let fd = sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, number)?;
        // Better error reports and filtered dumps; kernels without them work too.
        for option in [NETLINK_EXT_ACK, NETLINK_CAP_ACK, NETLINK_GET_STRICT_CHK] {
            let _ = sys::set_option(fd.as_fd(), SOL_NETLINK, option, 1);
        }
        Ok(Self {
            fd,
            buffer: vec![0; 64 * 1024],
            sequence: 1,
        })
    }

    /// The sequence number for the next request.
    pub fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        self.sequence
    }

    /// Enlarges the send buffer for a batch of this size; without `CAP_NET_ADMIN` at most to the system's limit.
    pub fn reserve(&self, bytes: usize) {
        let size = i32::try_from(bytes.saturating_mul(2)).unwrap_or(i32::MAX);
        if sys::set_option(self.fd.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, size).is_err() {
            let _ = sys::set_option(self.fd.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, size);
        }
    }

    /// Sends requests of which the one numbered `last` asks for an acknowledgement, and waits for that or for
    /// the first error.
    pub fn transact(&mut self, writer: &Writer, last: u32) -> Result<(), KernelError> {
        self.send(writer)?;
        loop {
            let length = self.receive()?;
            for message in Messages::new(&self.buffer[..length]) {
                match error_of(&message) {
                    Some(Err(error)) => return Err(error),
                    Some(Ok(())) if message.sequence == last => return Ok(()),
                    _ => {}
                }
            }
        }
    }

    /// Sends a request for a list and calls `each` with every item. Starts again when the list changed meanwhile.
    pub fn dump<T>(
        &mut self,
        request: impl Fn(&mut Writer, u32),
        each: impl Fn(&Message<'_>) -> Option<T>,
    ) -> Result<Vec<T>, KernelError> {
        loop {
            let sequence = self.next_sequence();
            let mut writer = Writer::with_capacity(256);
            request(&mut writer, sequence);
            self.send(&writer)?;
            if let Some(items) = self.collect(sequence, &each)? {
                return Ok(items);
            }
        }
    }

    fn collect<T>(
        &mut self,
        sequence: u32,
        each: &impl Fn(&Message<'_>) -> Option<T>,
    ) -> Result<Option<Vec<T>>, KernelError> {
        let mut items = Vec::new();
        let mut changed = false;
        loop {
            let length = self.receive()?;
            for message in Messages::new(&self.buffer[..length]) {
                if message.sequence != sequence {
                    continue;
                }
                changed |= message.flags & NLM_F_DUMP_INTR != 0;
                match message.kind {
                    NLMSG_DONE => return Ok((!changed).then_some(items)),
                    NLMSG_ERROR => match error_of(&message) {
                        Some(Err(error)) => return Err(error),
                        _ => return Ok(Some(items)),
                    },
                    _ => items.extend(each(&message)),
                }
            }
        }
    }

    fn send(&self, writer: &Writer) -> Result<(), KernelError> {
        sys::send(self.fd.as_fd(), writer.as_bytes())
            .map(drop)
            .map_err(|error| KernelError::local(&error))
    }

    fn receive(&mut self) -> Result<usize, KernelError> {
        loop {
            match sys::receive(self.fd.as_fd(), &mut self.buffer) {
                Ok(length) if length > self.buffer.len() => {
                    return Err(KernelError::local(&io::Error::from_raw_os_error(libc::EMSGSIZE)));
                }
                Ok(length) => return Ok(length),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(KernelError::local(&error)),
            }
        }
    }
}

/// The result in an acknowledgement; `None` if the message is not one.
pub(super) fn error_of(message: &Message<'_>) -> Option<Result<(), KernelError>> {
    if message.kind != NLMSG_ERROR {
        return None;
    }
    let code = i32::from_ne_bytes(*message.payload.first_chunk()?);
    if code == 0 {
        return Some(Ok(()));
    }
    let mut error = KernelError {
        errno: code.saturating_neg(),
        sequence: message.sequence,
        message: None,
        offset: None,
    };
    if message.flags & NLM_F_ACK_TLVS != 0 {
        // The request is repeated, or only its header if the answer is capped; the attributes follow.
        let echoed = message
            .payload
            .get(4..8)
            .and_then(|length| length.try_into().ok())
            .map(u32::from_ne_bytes);
        let echoed = echoed
            .and_then(|length| usize::try_from(length).ok())
            .unwrap_or(HEADER_LENGTH);
        let skip = 4 + if message.flags & NLM_F_CAPPED != 0 {
            HEADER_LENGTH
        } else {
            aligned(echoed)
        };
        let attributes = Attributes::new(message.payload.get(skip..).unwrap_or_default());
        error.message = attributes.find(1).map(|text| text.text());
        error.offset = attributes.find(2).and_then(|offset| offset.host_u32());
    }
    Some(Err(error))
}
