//! Writing messages.

use super::{HEADER_LENGTH, NLA_F_NESTED, aligned};

/// One or more messages under construction.
///
/// Lengths are filled in when a message or a nested attribute ends, so the nesting is that of the code.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
    start: usize,
}

impl Writer {
    /// An empty buffer with room.
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(capacity),
            start: 0,
        }
    }

    /// Begins a message with its fixed part.
    pub fn begin(&mut self, kind: u16, flags: u16, sequence: u32, fixed: &[u8]) {
        self.start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&flags.to_ne_bytes());
        self.bytes.extend_from_slice(&sequence.to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(fixed);
        self.pad();
    }

    /// Ends the message begun last.
    pub fn end(&mut self) {
        let length = u32::try_from(self.bytes.len() - self.start).unwrap_or(u32::MAX);
        let at = self.start;
        self.bytes[at..at + 4].copy_from_slice(&length.to_ne_bytes());
    }

    /// Sets flags on the message begun last.
    pub fn add_flags(&mut self, flags: u16) {
        let at = self.start + 6;
        if let Some(field) = self.bytes.get_mut(at..at + 2) {
            let old = u16::from_ne_bytes([field[0], field[1]]);
            field.copy_from_slice(&(old | flags).to_ne_bytes());
        }
    }

    /// An attribute with these bytes.
    pub fn bytes(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.pad();
    }

    /// Bytes as they are, padded: the fixed part of a structure inside an attribute.
    pub fn raw(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.pad();
    }

    /// An attribute with a nul-terminated text.
    pub fn text(&mut self, kind: u16, value: &str) {
        let length = u16::try_from(5 + value.len()).unwrap_or(u16::MAX);
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
        self.pad();
    }

    /// A number in host order, as rtnetlink has them.
    pub fn host_u32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// A number in network order, as nfnetlink has them.
    pub fn net_u32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// An attribute that contains others.
    pub fn nested(&mut self, kind: u16, content: impl FnOnce(&mut Self)) {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&(kind | NLA_F_NESTED).to_ne_bytes());
        content(self);
        let length = u16::try_from(self.bytes.len() - at).unwrap_or(u16::MAX);
        self.bytes[at..at + 2].copy_from_slice(&length.to_ne_bytes());
    }

    /// Everything written so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether no message was written.
    pub fn is_empty(&self) -> bool {
        self.bytes.len() < HEADER_LENGTH
    }

    fn pad(&mut self) {
        self.bytes.resize(aligned(self.bytes.len()), 0);
    }
}
