//! `tensorboard/`: event files, for TensorBoard.
//!
//! Every session of a run writes its own file, `events.out.tfevents.<seconds>.<host>.<pid>`; TensorBoard reads the
//! files of a directory as one run, in the order of their names. The messages are in `event`.

mod event;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crc::{CRC_32_ISCSI, Crc};
use kiln_system::{Error, Result};
use prost::Message;

use self::event::{Event, SessionLog, Summary, Value};
use super::record::{Record, StepRecord};
use super::sink::Sink;
use super::utilization::Utilization;

/// Prefix of event files, by which TensorBoard finds them.
const PREFIX: &str = "events.out.tfevents.";

/// CRC-32C, also known as CRC-32/ISCSI.
const CASTAGNOLI: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// Seconds of training between two looks at the devices.
const LOOK_INTERVAL: f64 = 1.0;

#[derive(Debug)]
pub struct TensorBoard {
    path: PathBuf,
    /// Each event is one write, so that readers see it at once.
    file: File,
    /// The [`StepRecord::seconds`] of the last look at the devices.
    looked: Option<f64>,
    utilization: Option<Utilization>,
}

impl TensorBoard {
    /// Opens a new file in `directory`, which is created if necessary, for a run that continues after `after_step`, 0
    /// in a new run.
    ///
    /// TensorBoard then ignores later steps in earlier files: the run will write them again.
    pub fn open(directory: &Path, after_step: usize) -> Result<Self> {
        fs::create_dir_all(directory).map_err(Error::io("create", directory))?;
        let path = directory.join(file_name(directory)?);
        let file = File::create_new(&path).map_err(Error::io("create", &path))?;
        let mut board = Self { path, file, looked: None, utilization: None };
        board.write(0, Event { file_version: Some("brain.Event:2".into()), ..Event::default() })?;
        // At this event, TensorBoard drops its steps from this one on. It ignores the first such event of a run, so a
        // new run needs one too.
        let start = Event { session_log: Some(SessionLog::start()), ..Event::default() };
        board.write(after_step.saturating_add(1), start)?;
        Ok(board)
    }

    /// The same, with the utilization of these devices if NVML reports it.
    pub fn watching(self, devices: &[usize]) -> Self {
        Self { utilization: Utilization::of(devices), ..self }
    }

    /// Shows a text in Markdown under `tag`.
    pub fn text(&mut self, tag: &str, step: usize, markdown: &str) -> Result<()> {
        self.show(step, vec![Value::text(tag, markdown)])
    }

    fn write(&mut self, step: usize, event: Event) -> Result<()> {
        let record = record(&Event { wall_time: now(), step: step as i64, ..event }.encode_to_vec());
        self.file.write_all(&record).map_err(Error::io("write", &self.path))
    }

    fn show(&mut self, step: usize, value: Vec<Value>) -> Result<()> {
        self.write(step, Event { summary: Some(Summary { value }), ..Event::default() })
    }

    /// How busy the devices are, now and then.
    fn watch(&mut self, record: &StepRecord) -> Result<()> {
        if self.looked.is_some_and(|last| record.seconds - last < LOOK_INTERVAL) {
            return Ok(());
        }
        self.looked = Some(record.seconds);
        for load in self.utilization.iter().flat_map(Utilization::look).collect::<Vec<_>>() {
            let value = |what: &str, value| Value::scalar(&format!("device/{}/{what}", load.device), value);
            let values = [value("utilization_percent", load.percent), value("memory_bytes", load.memory)];
            self.show(record.step, values.into())?;
        }
        Ok(())
    }
}

impl Sink for TensorBoard {
    fn record(&mut self, record: &Record) -> Result<()> {
        let values = record.scalars().into_iter().map(|(tag, value)| Value::scalar(tag, value)).collect();
        match record {
            Record::Step(record) => {
                self.show(record.step, values)?;
                self.watch(record)
            }
            Record::Epoch(record) => self.show(record.step, values),
            Record::Start(_) | Record::Generation(_) | Record::Replicas(_) => Ok(()),
        }
    }

    fn picture(&mut self, tag: &str, step: usize, png: &[u8]) -> Result<()> {
        // The width and height of a PNG file begin at its seventeenth byte.
        let side = |at: usize| png.get(at..at + 4).and_then(|side| Some(u32::from_be_bytes(side.try_into().ok()?)));
        let size = [16, 20].map(|at| side(at).unwrap_or_default());
        self.show(step, vec![Value::image(tag, png, size)])
    }
}

/// A name that sorts after the names of all earlier sessions, even if clocks differ.
fn file_name(directory: &Path) -> Result<String> {
    let entries = fs::read_dir(directory).map_err(Error::io("read", directory))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let seconds = |name: String| name.strip_prefix(PREFIX)?.split('.').next()?.parse::<u64>().ok();
    let next = names.filter_map(seconds).max().map_or(0, |last| last.saturating_add(1));
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    Ok(format!("{PREFIX}{:010}.{host}.{}", next.max(now() as u64), std::process::id()))
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// A TFRecord: the length of the payload as a little-endian `u64`, the masked CRC of these eight bytes, the payload,
/// and the masked CRC of the payload.
fn record(payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u64).to_le_bytes();
    let [length_crc, payload_crc] = [&length[..], payload].map(|bytes| masked_crc(bytes).to_le_bytes());
    [&length[..], &length_crc, payload, &payload_crc].concat()
}

/// The format masks its CRCs because the CRC of data that holds CRCs is weak.
fn masked_crc(bytes: &[u8]) -> u32 {
    CASTAGNOLI.checksum(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}
