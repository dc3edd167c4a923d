//! Settings of earlier versions that are gone: what to use instead, and how saved settings are read without them.

const ENCRYPTED: &str = "the job's secret encrypts the rendezvous: use --job-secret-file";

/// Keys, each with what to use instead of it or of its flag.
const REMOVED: &[(&str, &str)] =
    &[("parallel.tls_cert", ENCRYPTED), ("parallel.tls_key", ENCRYPTED), ("parallel.tls_ca", ENCRYPTED)];

/// What to use instead of `name`, a key or a flag that is gone.
pub fn remedy(name: &str) -> Option<&'static str> {
    let flag = |key: &str| format!("--{}", key.rsplit('.').next().unwrap_or_default().replace('_', "-"));
    REMOVED.iter().find(|(key, _)| *key == name || flag(key) == name).map(|(_, remedy)| *remedy)
}

/// The settings `text` that a run has saved without keys that are gone. The other lines keep their numbers.
pub fn without(text: &str) -> String {
    let (mut section, mut kept) = ("", String::new());
    for line in text.split_inclusive('\n') {
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end().trim_end_matches(']');
        }
        let key = line.split_once('=').map(|(name, _)| format!("{section}.{}", name.trim()));
        kept.push_str(if key.is_some_and(|key| remedy(&key).is_some()) { "\n" } else { line });
    }
    kept
}
