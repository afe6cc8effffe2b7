//! Pieces of a conversation: a kind, a length, bytes.

use std::io;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Longest piece.
const LONGEST: usize = 1 << 20;

/// What a piece is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// What is wanted, as JSON.
    Request,
    /// For standard output.
    Out,
    /// For standard error.
    Err,
    /// From standard input; empty: its end.
    In,
    /// The terminal has these rows and columns now: two numbers of 16 bits.
    Size,
    /// The process ended with this code: a number of 32 bits.
    Exit,
    /// It cannot be done, and why.
    Fail,
    /// An answer, as JSON.
    Answer,
}

const KINDS: [Kind; 8] = [
    Kind::Request,
    Kind::Out,
    Kind::Err,
    Kind::In,
    Kind::Size,
    Kind::Exit,
    Kind::Fail,
    Kind::Answer,
];

/// Sends a piece.
pub async fn send(to: &mut (impl AsyncWrite + Unpin), kind: Kind, bytes: &[u8]) -> io::Result<()> {
    let place = KINDS.iter().position(|k| *k == kind).unwrap_or_default();
    let mut head = vec![u8::try_from(place).unwrap_or_default()];
    let length = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    head.extend(length.to_be_bytes());
    head.extend(bytes);
    to.write_all(&head).await?;
    to.flush().await
}

/// The next piece; nothing at the end.
pub async fn receive(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<(Kind, Vec<u8>)>> {
    let kind = match from.read_u8().await {
        Ok(number) => KINDS.get(usize::from(number)).copied(),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    let kind = kind.ok_or(io::ErrorKind::InvalidData)?;
    let length = usize::try_from(from.read_u32().await?).unwrap_or(usize::MAX);
    if length > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes).await?;
    Ok(Some((kind, bytes)))
}

#[cfg(test)]
mod tests {
    use super::{Kind, receive, send};

    #[test]
    fn pieces_arrive_as_they_were_sent() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut bytes = Vec::new();
            send(&mut bytes, Kind::Out, b"hello").await.unwrap();
            send(&mut bytes, Kind::In, b"").await.unwrap();
            let mut rest = &bytes[..];
            assert_eq!(
                receive(&mut rest).await.unwrap(),
                Some((Kind::Out, b"hello".to_vec()))
            );
            assert_eq!(receive(&mut rest).await.unwrap(), Some((Kind::In, Vec::new())));
            assert_eq!(receive(&mut rest).await.unwrap(), None);
            assert!(receive(&mut &[99, 0, 0, 0, 0][..]).await.is_err(), "unknown kind");
            assert!(receive(&mut &[1, 255, 0, 0, 0][..]).await.is_err(), "too long");
        });
    }
}
