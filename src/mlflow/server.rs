//! Requests to an MLflow server, by version 2.0 of its REST interface.
//!
//! Its address and credentials come from the variables of MLflow's own clients, so that no file of a run holds them.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine};
use kiln_objects::fetch::agent;
use kiln_system::{Error, Result};
use serde_json::Value;
use ureq::AsSendBody;
use ureq::http::Request;

const ADDRESS: &str = "MLFLOW_TRACKING_URI";
/// That of a server that was started without options.
const USUAL: &str = "http://127.0.0.1:5000";

/// How long a connection, an answer, or a part of a file may take.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(10));

/// What the server answers, or in one line why it did not.
pub(super) type Answer<T> = std::result::Result<T, String>;

#[derive(Debug, Clone)]
pub struct Server {
    agent: ureq::Agent,
    url: String,
    authorization: Option<String>,
}

/// The value of a variable that is set.
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Server {
    /// The server of `MLFLOW_TRACKING_URI`, with `MLFLOW_TRACKING_TOKEN`, or `MLFLOW_TRACKING_USERNAME` and
    /// `MLFLOW_TRACKING_PASSWORD`.
    ///
    /// # Errors
    /// [`Error::Usage`] if the address is not one of a server.
    pub fn from_environment() -> Result<Self> {
        let url = variable(ADDRESS).unwrap_or(USUAL.into());
        if !["http://", "https://"].iter().any(|scheme| url.starts_with(scheme)) || url.contains('@') {
            // Not repeated: it may hold a password.
            return Err(Error::usage(format!(
                "{ADDRESS} must be the address of a server, as in {USUAL}, without a password \
                 (MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD hold them); set it, or remove --mlflow"
            )));
        }
        let bearer = variable("MLFLOW_TRACKING_TOKEN").map(|token| format!("Bearer {token}"));
        let [user, password] = ["MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"].map(variable);
        let basic = user.zip(password).map(|(user, password)| BASE64_STANDARD.encode(format!("{user}:{password}")));
        let authorization = bearer.or(basic.map(|pair| format!("Basic {pair}")));
        Ok(Self { agent: agent()?, url: url.trim_end_matches('/').into(), authorization })
    }

    /// The address of a run, for people.
    pub(super) fn page(&self, experiment: &str, run: &str) -> String {
        format!("{}/#/experiments/{experiment}/runs/{run}", self.url)
    }

    /// Posts `body` to a method such as `runs/create`.
    pub(super) fn post(&self, method: &str, body: &Value) -> Answer<Value> {
        self.send("POST", &format!("mlflow/{method}"), body.to_string().into_bytes())
    }

    /// Stores the file under a path of the server's artifacts.
    pub(super) fn put(&self, path: &str, file: &Path) -> Answer<()> {
        let open = File::open(file).map_err(|reason| format!("'{}': {reason}", file.display()))?;
        self.send("PUT", &format!("mlflow-artifacts/artifacts/{path}"), open).map(drop)
    }

    fn send(&self, verb: &str, path: &str, body: impl AsSendBody) -> Answer<Value> {
        let request = Request::builder().method(verb).uri(format!("{}/api/2.0/{path}", self.url));
        let request = self.authorization.iter().fold(request, |it, words| it.header("Authorization", words));
        let request = request.header("Content-Type", "application/json").body(body).map_err(|it| it.to_string())?;
        let request = self.agent.configure_request(request).http_status_as_error(false);
        let request = request.timeout_connect(PATIENCE).timeout_recv_response(PATIENCE).timeout_per_read(PATIENCE);
        let said = self.agent.run(request.build()).map_err(|reason| format!("{}: {reason}", self.url));
        let mut said = said?;
        let text = said.body_mut().read_to_string().map_err(|reason| format!("{}: {reason}", self.url))?;
        let answer: Value = serde_json::from_str(&text).unwrap_or_default();
        if said.status().is_success() {
            return Ok(answer);
        }
        let why = ["error_code", "message"].map(|key| answer[key].as_str().unwrap_or_default()).join(" ");
        Err(format!("{} answers {} to {path}: {}", self.url, said.status().as_u16(), why.replace('\n', " ")))
    }
}
