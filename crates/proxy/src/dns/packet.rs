//! DNS messages, as far as a proxy has to look into them: the question and the size a client can take are read,
//! answers with addresses are written. Everything else passes as bytes, so that what is not known here is not lost.
//!
//! Any bytes may come in. Names are read once, forwards, without following pointers.

use std::net::IpAddr;

/// An IPv4 address.
pub const A: u16 = 1;
/// An IPv6 address.
pub const AAAA: u16 = 28;
/// The internet.
pub const IN: u16 = 1;
const CNAME: u16 = 5;
const OPT: u16 = 41;

/// What every UDP client can take.
pub const SMALLEST: usize = 512;
/// What is written, and let through, at most by UDP.
pub const LARGEST_DATAGRAM: usize = 4096;
/// The largest message by TCP.
pub const LARGEST: usize = 65_535;
/// Seconds for which an answer of ours may be remembered.
// istio: the same.
const TTL: u32 = 30;

const HEADER: usize = 12;
const OPT_LENGTH: usize = 11;
const RESPONSE: u16 = 1 << 15;
const OPCODE: u16 = 0b1111 << 11;
const AUTHORITATIVE: u16 = 1 << 10;
const TRUNCATED: u16 = 1 << 9;
const RECURSION_DESIRED: u16 = 1 << 8;
const RECURSION_AVAILABLE: u16 = 1 << 7;
const CHECKING_DISABLED: u16 = 1 << 4;
const CODE: u16 = 0b1111;

/// How a question is answered when not with records. The numbers are the protocol's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// Understood; perhaps there is nothing.
    NoError,
    /// The question cannot be read.
    FormatError,
    /// It could not be found out.
    ServerFailure,
    /// There is no such name.
    NoSuchName,
    /// A kind of message that is not served.
    NotImplemented,
    /// Not from us.
    Refused,
    /// A version of the extensions that is not known.
    BadVersion,
}

impl Code {
    const fn number(self) -> u16 {
        match self {
            Self::NoError => 0,
            Self::FormatError => 1,
            Self::ServerFailure => 2,
            Self::NoSuchName => 3,
            Self::NotImplemented => 4,
            Self::Refused => 5,
            Self::BadVersion => 16,
        }
    }
}

/// What a client says about itself (EDNS).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Extensions {
    /// Where its size stands in the message.
    size_at: usize,
    size: u16,
    version: u8,
}

/// A question that can be read.
#[derive(Debug, Clone)]
pub struct Query<'a> {
    bytes: &'a [u8],
    /// Where the question ends.
    end: usize,
    name: Option<String>,
    /// The type that is asked for.
    pub kind: u16,
    /// The class.
    pub class: u16,
    extensions: Option<Extensions>,
}

/// Bytes that are no question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoQuery {
    /// Too short for an answer, or an answer itself: to be answered never.
    Silence,
    /// To be answered with this.
    Wrong(Code),
}

impl<'a> Query<'a> {
    /// Reads a message from a client.
    pub fn read(bytes: &'a [u8]) -> Result<Self, NoQuery> {
        let flags = half(bytes, 2).filter(|_| bytes.len() >= HEADER);
        let flags = flags.filter(|f| f & RESPONSE == 0).ok_or(NoQuery::Silence)?;
        if flags & OPCODE != 0 {
            return Err(NoQuery::Wrong(Code::NotImplemented));
        }
        let wrong = NoQuery::Wrong(Code::FormatError);
        if half(bytes, 4) != Some(1) {
            return Err(wrong);
        }
        let (name, end) = question_name(bytes).ok_or(wrong)?;
        let (kind, class) = half(bytes, end).zip(half(bytes, end + 2)).ok_or(wrong)?;
        let end = end + 4;
        let extensions = extensions(bytes, end).map_err(|Unreadable| wrong)?;
        if extensions.is_some_and(|e| e.version > 0) {
            return Err(NoQuery::Wrong(Code::BadVersion));
        }
        Ok(Self {
            bytes,
            end,
            name,
            kind,
            class,
            extensions,
        })
    }

    /// The name in small letters without the last dot; nothing if it is none that a host can have.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The most the client can take by UDP.
    pub fn datagram(&self) -> usize {
        let size = self.extensions.map_or(SMALLEST, |e| usize::from(e.size));
        size.clamp(SMALLEST, LARGEST_DATAGRAM)
    }

    /// The message for another server: as it came, with another number, and not asking for more than fits.
    pub fn forwarded(&self, id: u16) -> Vec<u8> {
        let mut bytes = self.bytes.to_vec();
        put(&mut bytes, 0, id);
        if let Some(extensions) = self.extensions
            && usize::from(extensions.size) > LARGEST_DATAGRAM
        {
            put(&mut bytes, extensions.size_at, 4096);
        }
        bytes
    }

    /// Whether a message is the answer to [`forwarded`](Self::forwarded) with this number.
    pub fn is_answered_by(&self, id: u16, answer: &[u8]) -> bool {
        let Some(flags) = half(answer, 2) else {
            return false;
        };
        if half(answer, 0) != Some(id) || flags & RESPONSE == 0 || flags & OPCODE != 0 {
            return false;
        }
        let name = HEADER..self.end - 4;
        let kind = self.end - 4..self.end;
        match half(answer, 4) {
            Some(1) => {
                let same_name = self.bytes.get(name.clone()).zip(answer.get(name));
                // Servers may spell it otherwise; the lengths of labels are no letters.
                same_name.is_some_and(|(ours, theirs)| ours.eq_ignore_ascii_case(theirs))
                    && self.bytes.get(kind.clone()) == answer.get(kind)
            }
            // Somebody who could not read the question, or did not want to, cannot repeat it.
            Some(0) => flags & CODE != 0 && flags & CODE != Code::NoSuchName.number(),
            _ => false,
        }
    }

    /// An answer with addresses, as many as fit; with `alias`, the name that was meant.
    pub fn addresses(&self, alias: Option<&str>, addresses: &[IpAddr], limit: usize) -> Vec<u8> {
        let mut answer = self.start(Code::NoError, AUTHORITATIVE);
        let room = limit.saturating_sub(if self.extensions.is_some() { OPT_LENGTH } else { 0 });
        let mut count = 0;
        let mut owner = pointer(HEADER);
        if let Some(alias) = alias {
            let target = name_bytes(alias);
            let at = answer.len() + 12;
            record(&mut answer, owner, CNAME, &target);
            count += 1;
            owner = pointer(at);
        }
        // Without room for what was meant, addresses stand under what was asked.
        if answer.len() > room {
            answer.truncate(self.end);
            (count, owner) = (0, pointer(HEADER));
        }
        let mut truncated = false;
        for address in addresses {
            let length = answer.len();
            match address {
                IpAddr::V4(v4) => record(&mut answer, owner, A, &v4.octets()),
                IpAddr::V6(v6) => record(&mut answer, owner, AAAA, &v6.octets()),
            }
            if answer.len() > room {
                answer.truncate(length);
                truncated = true;
                break;
            }
            count += 1;
        }
        put(&mut answer, 6, count);
        // Who cannot ask by TCP has at least these.
        if truncated {
            let flags = half(&answer, 2).unwrap_or_default();
            put(&mut answer, 2, flags | TRUNCATED);
        }
        self.finish(&mut answer, Code::NoError);
        answer
    }

    /// An answer that says no more than that there is more by TCP.
    pub fn by_tcp_only(&self) -> Vec<u8> {
        let mut answer = self.start(Code::NoError, TRUNCATED);
        self.finish(&mut answer, Code::NoError);
        answer
    }

    /// Gives an answer to [`forwarded`](Self::forwarded) the number the client used.
    pub fn renumber(&self, answer: &mut [u8]) {
        if let Some(id) = half(self.bytes, 0) {
            put(answer, 0, id);
        }
    }

    /// An answer without records.
    pub fn code(&self, code: Code) -> Vec<u8> {
        let mut answer = self.start(code, 0);
        self.finish(&mut answer, code);
        answer
    }

    /// Header and question.
    fn start(&self, code: Code, more: u16) -> Vec<u8> {
        let mut answer = self.bytes.get(..self.end).unwrap_or_default().to_vec();
        put(&mut answer, 2, answer_flags(self.bytes, code) | more);
        for at in [6, 8, 10] {
            put(&mut answer, at, 0);
        }
        answer
    }

    /// Extensions are answered with extensions.
    fn finish(&self, answer: &mut Vec<u8>, code: Code) {
        if self.extensions.is_some() {
            extend(answer, code);
            put(answer, 10, 1);
        }
    }
}

/// The answer to a message whose question cannot be read: its header alone.
pub fn wrong(bytes: &[u8], code: Code) -> Option<Vec<u8>> {
    let mut answer = bytes.get(..HEADER)?.to_vec();
    put(&mut answer, 2, answer_flags(bytes, code));
    for at in [4, 6, 8, 10] {
        put(&mut answer, at, 0);
    }
    // Half of this code has its place in the extensions only.
    if code == Code::BadVersion {
        extend(&mut answer, code);
        put(&mut answer, 10, 1);
    }
    Some(answer)
}

/// Whether an answer says that it is not whole.
pub fn is_truncated(answer: &[u8]) -> bool {
    half(answer, 2).is_some_and(|flags| flags & TRUNCATED != 0)
}

/// Whether another server may know better.
pub fn is_failure(answer: &[u8]) -> bool {
    let failures = [Code::ServerFailure, Code::NotImplemented, Code::Refused];
    half(answer, 2).is_some_and(|flags| failures.iter().any(|f| f.number() == flags & CODE))
}

/// Makes `there is no such name` `there is such a name, but nothing of this type`.
pub fn name_exists(answer: &mut [u8]) {
    if let Some(flags) = half(answer, 2)
        && flags & CODE == Code::NoSuchName.number()
    {
        put(answer, 2, flags & !CODE);
    }
}

fn answer_flags(query: &[u8], code: Code) -> u16 {
    let flags = half(query, 2).unwrap_or_default();
    let kept = flags & (OPCODE | RECURSION_DESIRED | CHECKING_DISABLED);
    RESPONSE | RECURSION_AVAILABLE | kept | (code.number() & CODE)
}

fn extend(answer: &mut Vec<u8>, code: Code) {
    let [upper, _] = (code.number() >> 4 << 8).to_be_bytes();
    // The root, the type, our size, the rest of the code, version 0, no flags, no options.
    answer.push(0);
    answer.extend(OPT.to_be_bytes());
    answer.extend([0x10, 0x00, upper, 0, 0, 0, 0, 0]);
}

fn record(answer: &mut Vec<u8>, owner: u16, kind: u16, data: &[u8]) {
    answer.extend(owner.to_be_bytes());
    answer.extend(kind.to_be_bytes());
    answer.extend(IN.to_be_bytes());
    answer.extend(TTL.to_be_bytes());
    // Data of ours is an address or a name, and both are short.
    answer.extend(u16::try_from(data.len()).unwrap_or_default().to_be_bytes());
    answer.extend(data);
}

/// A name that stands at this place of the message already.
fn pointer(at: usize) -> u16 {
    0xc000 | u16::try_from(at).unwrap_or_default()
}

/// A name that was read by [`question_name`], or a part of one: labels are short.
fn name_bytes(name: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(name.len() + 2);
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).unwrap_or_default());
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes
}

/// The name of the question and where it ends.
fn question_name(bytes: &[u8]) -> Option<(Option<String>, usize)> {
    let mut text = String::new();
    let mut is_host = true;
    let mut at = HEADER;
    loop {
        let length = usize::from(*bytes.get(at)?);
        at += 1;
        // A first name can point at nothing but itself.
        if length > 63 || at - HEADER + length > 255 {
            return None;
        }
        if length == 0 {
            break;
        }
        let label = bytes.get(at..at + length)?;
        at += length;
        if !text.is_empty() {
            text.push('.');
        }
        let of_host = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        is_host &= label.iter().all(of_host);
        text.extend(label.iter().map(|b| char::from(b.to_ascii_lowercase())));
    }
    Some(((is_host && !text.is_empty()).then_some(text), at))
}

struct Unreadable;

/// Looks through what follows the question.
fn extensions(bytes: &[u8], mut at: usize) -> Result<Option<Extensions>, Unreadable> {
    let counts = [
        half(bytes, 6).ok_or(Unreadable)?,
        half(bytes, 8).ok_or(Unreadable)?,
        half(bytes, 10).ok_or(Unreadable)?,
    ];
    let mut found = None;
    for _ in 0..counts.into_iter().map(u32::from).sum() {
        at = skip_name(bytes, at).ok_or(Unreadable)?;
        let length = usize::from(half(bytes, at + 8).ok_or(Unreadable)?);
        if half(bytes, at).ok_or(Unreadable)? == OPT {
            let extensions = Extensions {
                size_at: at + 2,
                size: half(bytes, at + 2).ok_or(Unreadable)?,
                version: *bytes.get(at + 5).ok_or(Unreadable)?,
            };
            if found.replace(extensions).is_some() {
                return Err(Unreadable);
            }
        }
        at += 10 + length;
        if at > bytes.len() {
            return Err(Unreadable);
        }
    }
    Ok(found)
}

fn skip_name(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match bytes.get(at)? {
            0 => return Some(at + 1),
            length @ 1..=63 => at += 1 + usize::from(*length),
            0xc0.. => return Some(at + 2),
            _ => return None,
        }
    }
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_be_bytes([*bytes.first()?, *bytes.last()?]))
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(place) = bytes.get_mut(at..at + 2) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

#[cfg(test)]
mod tests;
