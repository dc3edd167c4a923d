//! Authenticity: a keyed hash (HMAC-SHA256, RFC 2104) over every message of a session.
//!
//! A [`Seal`] hashes direction, sequence and body, so an envelope that was changed, repeated, dropped, or sent back to
//! its sender is detected. Secrecy needs TLS.

use hmac::{Hmac, Mac};
use sha2::Sha256;

use super::wire::Envelope;

/// The sender of an envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The service.
    Service,
    /// The member.
    Member,
}

impl Side {
    fn label(self) -> &'static str {
        match self {
            Self::Service => "from service",
            Self::Member => "from member",
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Service => Self::Member,
            Self::Member => Self::Service,
        }
    }
}

/// The error for an envelope that is not the next one of the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message was not authentic")]
pub struct Forged;

/// One side's seal of a session.
#[derive(Debug)]
pub struct Seal {
    key: Vec<u8>,
    side: Side,
    sent: u64,
    received: u64,
}

impl Seal {
    /// The seal of `side` under the key of the session.
    pub fn new(key: Vec<u8>, side: Side) -> Self {
        Self { key, side, sent: 0, received: 0 }
    }

    /// Wraps the next body for the other side.
    pub fn close(&mut self, body: Vec<u8>) -> Envelope {
        let sequence = self.sent;
        self.sent += 1;
        let mac = hash(&self.key, self.side.label(), &[&sequence.to_le_bytes(), &body]).finalize();
        Envelope { sequence, body, mac: mac.into_bytes().to_vec() }
    }

    /// Unwraps the next envelope of the other side.
    pub fn open(&mut self, envelope: Envelope) -> Result<Vec<u8>, Forged> {
        let Envelope { sequence, body, mac } = envelope;
        if sequence != self.received {
            return Err(Forged);
        }
        let expected = hash(&self.key, self.side.other().label(), &[&sequence.to_le_bytes(), &body]);
        expected.verify_slice(&mac).map_err(|_| Forged)?;
        self.received += 1;
        Ok(body)
    }
}

/// The keyed hash of `fields`; `label` keeps hashes of different purposes apart, lengths keep fields apart.
pub(super) fn hash(key: &[u8], label: &str, fields: &[&[u8]]) -> Hmac<Sha256> {
    let mut hash = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    for field in std::iter::once(label.as_bytes()).chain(fields.iter().copied()) {
        hash.update(&(field.len() as u64).to_le_bytes());
        hash.update(field);
    }
    hash
}
