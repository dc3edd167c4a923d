//! Where the bytes of an image lie in a Parquet file, as one number: one read of the file gives them, without its footer.

use std::fs::File;
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Seek, SeekFrom, copy, sink};
use std::os::unix::fs::FileExt;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

use super::snappy;

/// Bits of [`Place::skip`] and of the codec in the number.
const SKIP: u32 = 28;
const CODEC: u32 = 2;

/// Most bytes of a page.
const LARGEST_PAGE: u64 = 1 << 30;

/// Most bytes of a page that takes fewer in the file than a [`LARGEST_RATIO`]th of them, as repeated classes do.
const SMALL_PAGE: u64 = 16 << 20;

/// Most bytes of a larger page for one in the file; pictures are compressed already.
const LARGEST_RATIO: u64 = 32;

/// How pages are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Codec {
    None,
    Snappy,
    Zstd,
    Gzip,
}

impl Codec {
    const ALL: [Self; 4] = [Self::None, Self::Snappy, Self::Zstd, Self::Gzip];

    /// The bytes of a whole page.
    pub(super) fn whole(self, page: &[u8]) -> Result<Vec<u8>> {
        let most = (LARGEST_RATIO * page.len() as u64).clamp(SMALL_PAGE, LARGEST_PAGE);
        if self == Self::Snappy {
            return snappy::whole(page, most);
        }
        let mut plain = Vec::new();
        if self.stream(page)?.take(most + 1).read_to_end(&mut plain)? as u64 > most {
            let fault = format!("a page of {} compressed bytes has more than {most}", page.len());
            return Err(Error::new(ErrorKind::FileTooLarge, fault));
        }
        Ok(plain)
    }

    /// What a page holds, from its beginning.
    fn stream<'a>(self, page: impl BufRead + 'a) -> Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Self::Zstd => Box::new(StreamingDecoder::new(page).map_err(Error::other)?),
            Self::Gzip => Box::new(MultiGzDecoder::new(page)),
            Self::None | Self::Snappy => Box::new(page),
        })
    }
}

/// Where decoding begins, and where the image is in what is decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) codec: Codec,
    /// A byte of the file.
    pub(super) position: u64,
    /// Decoded bytes before the image.
    pub(super) skip: u64,
}

impl Place {
    /// `None` if the file or its page is too large.
    pub(super) fn number(self) -> Option<u64> {
        let fits = self.position >> (u64::BITS - SKIP - CODEC) == 0 && self.skip >> SKIP == 0;
        fits.then_some(self.position << (SKIP + CODEC) | self.skip << CODEC | self.codec as u64)
    }

    /// The inverse of [`Place::number`].
    pub(super) fn of(number: u64) -> Self {
        let codec = Codec::ALL[(number & 3) as usize];
        Self { codec, position: number >> (SKIP + CODEC), skip: number >> CODEC & ((1 << SKIP) - 1) }
    }

    /// The image of `length` bytes.
    ///
    /// # Errors
    /// If it is not there.
    pub(super) fn read(self, mut file: File, length: usize) -> Result<Vec<u8>> {
        let skip = self.skip as usize;
        if self.codec == Codec::None {
            let mut image = vec![0; length];
            file.read_exact_at(&mut image, self.position)?;
            return Ok(image);
        }
        file.seek(SeekFrom::Start(self.position))?;
        if self.codec == Codec::Snappy {
            // What an encoder makes of bytes that cannot be compressed.
            let most = 32 + (skip + length) * 7 / 6;
            let mut plain = snappy::decode(&mut BufReader::with_capacity(most, file), skip + length)?;
            plain.drain(..skip);
            return Ok(plain);
        }
        let mut image = vec![0; length];
        let mut stream = self.codec.stream(BufReader::new(file))?;
        copy(&mut stream.by_ref().take(self.skip), &mut sink())?;
        stream.read_exact(&mut image)?;
        Ok(image)
    }
}
