//! Readers: decompression by what the bytes say, and hashing.

use crate::image::digest::{Digest, Hasher};
use std::io::{self, BufRead, BufReader, Read};

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// Bytes a zstd stream may look back.
const BUFFER: usize = 1 << 16;

/// Undoes gzip or zstd; anything else is passed on as it is. The media type of a layer is not always right.
pub(crate) fn decompressed<'a>(source: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut source = BufReader::with_capacity(BUFFER, source);
    let start = source.fill_buf()?;
    if start.starts_with(GZIP) {
        return Ok(Box::new(flate2::bufread::MultiGzDecoder::new(source)));
    }
    if start.starts_with(ZSTD) || is_skippable(start) {
        return Ok(Box::new(Frames {
            source: Some(source),
            frame: None,
        }));
    }
    Ok(Box::new(source))
}

/// Frames with data for others, which decoders pass over.
fn is_skippable(bytes: &[u8]) -> bool {
    matches!(bytes, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

type Frame<R> = ruzstd::decoding::StreamingDecoder<R, ruzstd::decoding::FrameDecoder>;

/// A zstd stream of any number of frames.
struct Frames<R: BufRead> {
    source: Option<R>,
    frame: Option<Box<Frame<R>>>,
}

impl<R: BufRead> Frames<R> {
    /// Begins the next frame; `false` at the end.
    fn begin(&mut self) -> io::Result<bool> {
        let Some(mut source) = self.source.take() else {
            return Ok(false);
        };
        loop {
            let start = source.fill_buf()?;
            if start.is_empty() {
                self.source = Some(source);
                return Ok(false);
            }
            if !is_skippable(start) {
                break;
            }
            let mut header = [0; 8];
            source.read_exact(&mut header)?;
            let [.., a, b, c, d] = header;
            let length = u64::from(u32::from_le_bytes([a, b, c, d]));
            if io::copy(&mut source.by_ref().take(length), &mut io::sink())? != length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let frame =
            Frame::new(source).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.to_string()))?;
        self.frame = Some(Box::new(frame));
        Ok(true)
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, data: &mut [u8]) -> io::Result<usize> {
        if data.is_empty() {
            return Ok(0);
        }
        loop {
            if let Some(frame) = &mut self.frame {
                let got = frame.read(data)?;
                if got > 0 {
                    return Ok(got);
                }
            }
            if let Some(frame) = self.frame.take() {
                self.source = Some(frame.into_inner());
            }
            if !self.begin()? {
                return Ok(0);
            }
        }
    }
}

/// Hashes what is read.
pub(super) struct Hashed<R> {
    inner: R,
    hasher: Hasher,
}

impl<R: Read> Hashed<R> {
    pub(super) fn new(inner: R, hasher: Hasher) -> Self {
        Self { inner, hasher }
    }

    pub(super) fn digest(self) -> Digest {
        self.hasher.finish()
    }
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, data: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(data)?;
        self.hasher.update(data.get(..got).unwrap_or_default());
        Ok(got)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        decompressed(bytes)?.read_to_end(&mut all)?;
        Ok(all)
    }

    #[test]
    fn zstd_of_several_frames_with_others_between() {
        let long = vec![b'x'; 200_000];
        let parts: [&[u8]; 3] = [b"one ", &long, b" end"];
        let mut stream = vec![0x51, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 9, 9, 9];
        for part in parts {
            stream.extend(compress_to_vec(part, CompressionLevel::Fastest));
            stream.extend([0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0]);
        }
        assert_eq!(read(&stream).unwrap(), parts.concat());
        // Cut anywhere it ends in an error or in less, never in a panic.
        for end in 0..stream.len() - 8 {
            let cut = read(&stream[..end]);
            assert!(cut.is_err() || cut.unwrap().len() < 200_008, "{end}");
        }
    }

    #[test]
    fn plain_and_empty_pass() {
        assert_eq!(read(b"plain").unwrap(), b"plain");
        assert_eq!(read(b"").unwrap(), b"");
        assert!(read(&[0x1f, 0x8b, 1, 2]).is_err());
    }
}
