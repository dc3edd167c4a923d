//! The handshake: both sides prove that they know the job's secret without revealing it.
//!
//! Hello (versions, job, nonce) - Challenge (nonce, the service's proof) - Proof (the member's proof, its
//! introduction). Proofs are keyed hashes over all messages so far, so a recorded handshake fails against a fresh
//! nonce. The service proves first, also when it refuses the Hello of another job or version, because a member must not
//! trust an answer without a proof; [`Secret`](super::Secret) says what that costs. [`ServiceHandshake`] and
//! [`MemberHandshake`] turn envelopes into envelopes, without input or output. The [`roster`](super::roster) decides
//! whether a process with a proof may join.

use hmac::Mac;
use prost::Message;

use super::refusal::Refusal;
use super::seal::{Seal, Side, hash};
use super::wire::{Answer, Challenge, Envelope, Greeting, Hello, PROTOCOL, Proof};
use super::{Terms, sentence};

/// Fresh bytes of one side.
pub type Nonce = [u8; 32];

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Why a member ends the handshake.
#[derive(Debug, Clone, PartialEq)]
pub enum HandshakeError {
    /// The answer does not prove that its sender knows the secret.
    Unproven,
    /// The service knows the secret, and refuses.
    Refused(Refusal),
}

impl Refusal {
    fn encode(&self) -> Vec<u8> {
        Answer { refusal: Some(self.clone()), challenge: None }.encode_to_vec()
    }

    /// The refusal for a process that does not know the secret, without a proof.
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
pub struct ServiceHandshake {
    key: Vec<u8>,
    size: usize,
    transcript: Transcript,
}

impl ServiceHandshake {
    /// Reads a member's first envelope; answers with the challenge. `nonce` must never have been used before.
    pub fn greet(terms: &Terms, envelope: &Envelope, nonce: Nonce) -> Result<(Self, Envelope), Refusal> {
        let Some(hello) = greeting(envelope).hello else {
            return Err(Refusal::permanent(
                "the first message was not a greeting; connect to this port with train only",
            ));
        };
        check(terms, &hello)?;
        let host =
            Self { key: terms.secret.as_key().to_vec(), size: terms.size, transcript: Transcript { hello, nonce } };
        let mac = host.transcript.hash(&host.key, "service", &[]).finalize().into_bytes().to_vec();
        let challenge = Answer { challenge: Some(Challenge { nonce: nonce.to_vec(), mac }), refusal: None };
        Ok((host, Envelope { sequence: 0, body: challenge.encode_to_vec(), mac: Vec::new() }))
    }

    /// Checks the member's proof; returns the seal of the session and the introduction, which is not decoded here.
    pub fn admit(self, envelope: &Envelope) -> Result<(Seal, Result<Vec<u8>, Refusal>), Refusal> {
        let refuse = || Refusal::permanent("this process and the service do not share the job's secret");
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
            (_, 0) => Err(Refusal::other_job(
                "the service serves a job whose processes come and go; give every process the same --elastic",
            )),
            (0, _) => Err(Refusal::other_job(
                "the service serves a job of fixed membership; leave --elastic out, or give it to every process",
            )),
            (theirs, ours) => Err(Refusal::other_job(format!(
                "this process counts '{theirs}' processes in the job, the service {ours}; give every process the same \
                 --world-size and --nnodes"
            ))),
        }
    }
}

/// The member's side, between its greeting and the service's challenge.
#[derive(Debug)]
pub struct MemberHandshake {
    key: Vec<u8>,
    hello: Hello,
    introduction: Vec<u8>,
}

impl MemberHandshake {
    /// `introduction` describes the process. `nonce` must never have been used before.
    pub fn new(terms: &Terms, introduction: Vec<u8>, nonce: Nonce) -> Self {
        let hello = Hello {
            protocol: PROTOCOL,
            version: VERSION.into(),
            job_id: terms.job(),
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
    pub fn answer(self, envelope: &Envelope) -> Result<(Seal, Envelope), HandshakeError> {
        let answer = Answer::decode(envelope.body.as_slice()).unwrap_or_default();
        if let Some(refusal) = answer.refusal {
            let proof = refusal_hash(&self.key, &self.hello().body, &envelope.body);
            proof.verify_slice(&envelope.mac).map_err(|_| HandshakeError::Unproven)?;
            return Err(HandshakeError::Refused(refusal));
        }
        let challenge = answer.challenge.ok_or(HandshakeError::Unproven)?;
        let nonce = Nonce::try_from(challenge.nonce.as_slice()).map_err(|_| HandshakeError::Unproven)?;
        let transcript = Transcript { hello: self.hello, nonce };
        let proof = transcript.hash(&self.key, "service", &[]);
        proof.verify_slice(&challenge.mac).map_err(|_| HandshakeError::Unproven)?;
        let mac = transcript.hash(&self.key, "member", &[&self.introduction]).finalize().into_bytes().to_vec();
        let proof = Greeting { proof: Some(Proof { mac, introduction: self.introduction }), hello: None };
        let envelope = Envelope { sequence: 1, body: proof.encode_to_vec(), mac: Vec::new() };
        Ok((transcript.seal(&self.key, Side::Member), envelope))
    }
}

/// What both sides sent before the proofs.
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

/// Checks what can be refused before the proofs; the reasons must not reveal the job.
fn check(terms: &Terms, hello: &Hello) -> Result<(), Refusal> {
    if hello.protocol != PROTOCOL || hello.version != VERSION {
        return Err(Refusal::other_job(format!(
            "this process is kiln '{}' (protocol {}), the service is kiln {VERSION} (protocol {PROTOCOL}); start every \
             process from the same build",
            sentence::line(&hello.version, 40),
            hello.protocol
        )));
    }
    if hello.job_id != terms.job() {
        return Err(Refusal::other_job(format!(
            "the service serves another job than '{}'; give every process the same --job-id and --dist-url",
            sentence::line(&hello.job_id, 80)
        )));
    }
    if hello.nonce.len() != size_of::<Nonce>() {
        return Err(Refusal::permanent("the greeting was malformed; start every process from the same build"));
    }
    Ok(())
}

/// A message that cannot be read becomes an empty greeting.
fn greeting(envelope: &Envelope) -> Greeting {
    Greeting::decode(envelope.body.as_slice()).unwrap_or_default()
}
