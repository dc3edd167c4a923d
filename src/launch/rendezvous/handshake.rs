//! The handshake: both sides prove that they know the job's secret, and neither shows it.
//!
//! Hello (versions, job, nonce) - Challenge (nonce, the service's proof) - Proof (the member's proof, its introduction).
//! Proofs are keyed hashes over everything said so far, so a recorded handshake is worth nothing against a fresh nonce.
//! The service proves first, also when it refuses the Hello of another job or version: an answer without a proof tells a
//! member nothing, see [`Doubt`]. What that costs is in [`Secret`](super::Secret). No bytes are read or written here:
//! [`Host`] and [`Guest`] turn envelopes into envelopes. Whether a proven member may sit down is left to the
//! [`roster`](super::roster).

use hmac::Mac;
use prost::Message;

use super::refusal::Refusal;
use super::seal::{Seal, Side, hash};
use super::wire::{Answer, Challenge, Envelope, Greeting, Hello, PROTOCOL, Proof};
use super::{Terms, sentence};

/// Fresh bytes of one side.
pub type Nonce = [u8; 32];

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Why a member does not go on with whoever answered.
#[derive(Debug, Clone, PartialEq)]
pub enum Doubt {
    /// The answer does not prove that its author knows the secret.
    Unproven,
    /// The service knows the secret, and refuses.
    Refused(Refusal),
}

impl Refusal {
    fn encode(&self) -> Vec<u8> {
        Answer { refusal: Some(self.clone()), challenge: None }.encode_to_vec()
    }

    /// The refusal for somebody who proved nothing, and believes nothing.
    pub fn bare(&self) -> Envelope {
        Envelope { sequence: 0, body: self.encode(), mac: Vec::new() }
    }

    /// The refusal as an answer to `hello`, with a proof.
    pub fn proven(&self, terms: &Terms, hello: &Envelope) -> Envelope {
        let body = self.encode();
        let mac = refusal_hash(terms.secret.as_key(), &hello.body, &body).finalize().into_bytes().to_vec();
        Envelope { sequence: 0, body, mac }
    }
}

fn refusal_hash(key: &[u8], hello: &[u8], body: &[u8]) -> hmac::Hmac<sha2::Sha256> {
    hash(key, "refusal", &[hello, body])
}

/// The service's side, between its challenge and the member's proof.
#[derive(Debug)]
pub struct Host {
    key: Vec<u8>,
    size: usize,
    transcript: Transcript,
}

impl Host {
    /// Reads a member's first envelope; answers with the challenge. `nonce` must never have been used before.
    pub fn greet(terms: &Terms, envelope: &Envelope, nonce: Nonce) -> Result<(Self, Envelope), Refusal> {
        let Some(hello) = greeting(envelope).hello else {
            return Err(Refusal::lasting("the first message was not a greeting; connect to this port with train only"));
        };
        check(terms, &hello)?;
        let host =
            Self { key: terms.secret.as_key().to_vec(), size: terms.size, transcript: Transcript { hello, nonce } };
        let mac = host.transcript.hash(&host.key, "service", &[]).finalize().into_bytes().to_vec();
        let challenge = Answer { challenge: Some(Challenge { nonce: nonce.to_vec(), mac }), refusal: None };
        Ok((host, Envelope { sequence: 0, body: challenge.encode_to_vec(), mac: Vec::new() }))
    }

    /// Checks the member's proof; from here on the session has a key. What the member says of itself is for others to
    /// read.
    pub fn admit(self, envelope: &Envelope) -> Result<(Seal, Result<Vec<u8>, Refusal>), Refusal> {
        let refuse = || Refusal::lasting("this process and the service do not share the job's secret");
        let proof = greeting(envelope).proof.ok_or_else(refuse)?;
        let expected = self.transcript.hash(&self.key, "member", &[&proof.introduction]);
        expected.verify_slice(&proof.mac).map_err(|_| refuse())?;
        let seal = self.transcript.seal(&self.key, Side::Service);
        let agreed = self.agree_on_size();
        Ok((seal, agreed.map(|()| proof.introduction)))
    }

    fn agree_on_size(&self) -> Result<(), Refusal> {
        match (self.transcript.hello.size, self.size) {
            (theirs, ours) if theirs == ours as u64 => Ok(()),
            (_, 0) => Err(Refusal::elsewhere(
                "the service serves a job whose processes come and go; give every process the same --elastic",
            )),
            (0, _) => Err(Refusal::elsewhere(
                "the service serves a job of fixed membership; leave --elastic out, or give it to every process",
            )),
            (theirs, ours) => Err(Refusal::elsewhere(format!(
                "this process counts '{theirs}' processes in the job, the service {ours}; give every process the same \
                 --world-size and --nnodes"
            ))),
        }
    }
}

/// The member's side, between its greeting and the service's challenge.
#[derive(Debug)]
pub struct Guest {
    key: Vec<u8>,
    hello: Hello,
    introduction: Vec<u8>,
}

impl Guest {
    /// A member that wants to join, with what it says of itself. `nonce` must never have been used before.
    pub fn new(terms: &Terms, introduction: Vec<u8>, nonce: Nonce) -> Self {
        let hello = Hello {
            protocol: PROTOCOL,
            version: VERSION.into(),
            job_id: terms.job_id.clone(),
            size: terms.size as u64,
            nonce: nonce.to_vec(),
        };
        Self { key: terms.secret.as_key().to_vec(), hello, introduction }
    }

    /// The first envelope.
    pub fn hello(&self) -> Envelope {
        let greeting = Greeting { hello: Some(self.hello.clone()), proof: None };
        Envelope { sequence: 0, body: greeting.encode_to_vec(), mac: Vec::new() }
    }

    /// Checks the service's proof; answers with its own.
    pub fn answer(self, envelope: &Envelope) -> Result<(Seal, Envelope), Doubt> {
        let answer = Answer::decode(envelope.body.as_slice()).unwrap_or_default();
        if let Some(refusal) = answer.refusal {
            let proof = refusal_hash(&self.key, &self.hello().body, &envelope.body);
            proof.verify_slice(&envelope.mac).map_err(|_| Doubt::Unproven)?;
            return Err(Doubt::Refused(refusal));
        }
        let challenge = answer.challenge.ok_or(Doubt::Unproven)?;
        let nonce = Nonce::try_from(challenge.nonce.as_slice()).map_err(|_| Doubt::Unproven)?;
        let transcript = Transcript { hello: self.hello, nonce };
        let proof = transcript.hash(&self.key, "service", &[]);
        proof.verify_slice(&challenge.mac).map_err(|_| Doubt::Unproven)?;
        let mac = transcript.hash(&self.key, "member", &[&self.introduction]).finalize().into_bytes().to_vec();
        let proof = Greeting { proof: Some(Proof { mac, introduction: self.introduction }), hello: None };
        let envelope = Envelope { sequence: 1, body: proof.encode_to_vec(), mac: Vec::new() };
        Ok((transcript.seal(&self.key, Side::Member), envelope))
    }
}

/// What both sides have said before they prove anything.
#[derive(Debug)]
struct Transcript {
    hello: Hello,
    nonce: Nonce,
}

impl Transcript {
    fn hash(&self, key: &[u8], purpose: &str, more: &[&[u8]]) -> hmac::Hmac<sha2::Sha256> {
        let hello = self.hello.encode_to_vec();
        hash(key, purpose, &[&[hello.as_slice(), &self.nonce], more].concat())
    }

    fn seal(&self, key: &[u8], side: Side) -> Seal {
        Seal::new(self.hash(key, "session", &[]).finalize().into_bytes().to_vec(), side)
    }
}

/// What can be refused before anybody has proven anything; it must not tell a stranger what the job is.
fn check(terms: &Terms, hello: &Hello) -> Result<(), Refusal> {
    if hello.protocol != PROTOCOL || hello.version != VERSION {
        return Err(Refusal::elsewhere(format!(
            "this process is kiln '{}' (protocol {}), the service is kiln {VERSION} (protocol {PROTOCOL}); start every \
             process from the same build",
            sentence::line(&hello.version, 40),
            hello.protocol
        )));
    }
    if hello.job_id != terms.job_id {
        return Err(Refusal::elsewhere(format!(
            "the service serves another job than '{}'; give every process the same --job-id and --dist-url",
            sentence::line(&hello.job_id, 80)
        )));
    }
    if hello.nonce.len() != size_of::<Nonce>() {
        return Err(Refusal::lasting("the greeting was malformed; start every process from the same build"));
    }
    Ok(())
}

/// What cannot be read is no greeting.
fn greeting(envelope: &Envelope) -> Greeting {
    Greeting::decode(envelope.body.as_slice()).unwrap_or_default()
}
