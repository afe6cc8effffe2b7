//! Reading messages.

use super::{HEADER_LENGTH, aligned};

/// A message in a received datagram.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    /// The type.
    pub kind: u16,
    /// The flags.
    pub flags: u16,
    /// The sequence number of the request that this message replies to.
    pub sequence: u32,
    /// The bytes after the header.
    pub payload: &'a [u8],
}

/// The messages in a datagram.
#[derive(Debug, Clone)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    /// Reads a datagram; the list ends at the first bytes that are not a valid message.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let header = self.rest.first_chunk::<HEADER_LENGTH>()?;
        let length =
            usize::try_from(u32::from_ne_bytes([header[0], header[1], header[2], header[3]])).ok()?;
        let payload = self.rest.get(HEADER_LENGTH..length)?;
        let message = Message {
            kind: u16::from_ne_bytes([header[4], header[5]]),
            flags: u16::from_ne_bytes([header[6], header[7]]),
            sequence: u32::from_ne_bytes([header[8], header[9], header[10], header[11]]),
            payload,
        };
        self.rest = self.rest.get(aligned(length)..).unwrap_or_default();
        Some(message)
    }
}

/// An attribute.
#[derive(Debug, Clone, Copy)]
pub struct Attribute<'a> {
    /// The type, without flags.
    pub kind: u16,
    /// The value.
    pub value: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// The attributes inside.
    pub const fn nested(&self) -> Attributes<'a> {
        Attributes::new(self.value)
    }

    /// The value as text, up to the nul.
    pub fn text(&self) -> String {
        let end = self
            .value
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(self.value.len());
        String::from_utf8_lossy(&self.value[..end]).into_owned()
    }

    /// The value as a number in network byte order.
    pub fn net_u32(&self) -> Option<u32> {
        Some(u32::from_be_bytes(self.value.try_into().ok()?))
    }

    /// The value as a number in host byte order.
    pub fn host_u32(&self) -> Option<u32> {
        Some(u32::from_ne_bytes(self.value.try_into().ok()?))
    }
}

/// A sequence of attributes.
#[derive(Debug, Clone)]
pub struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Attributes<'a> {
    /// Reads attributes; the list ends at the first bytes that are not a valid attribute.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The first attribute of this type.
    pub fn find(&self, kind: u16) -> Option<Attribute<'a>> {
        Iterator::find(&mut self.clone(), |attribute| attribute.kind == kind)
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Attribute<'a>;

    fn next(&mut self) -> Option<Attribute<'a>> {
        let header = self.rest.first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let value = self.rest.get(4..length)?;
        // The two top bits say "nested" and "network order".
        let kind = u16::from_ne_bytes([header[2], header[3]]) & 0x3fff;
        self.rest = self.rest.get(aligned(length)..).unwrap_or_default();
        Some(Attribute { kind, value })
    }
}
