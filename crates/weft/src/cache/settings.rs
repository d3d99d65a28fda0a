//! The settings of a cache in front of a source, as text: `dirty-limit=1G`, `commit-ms=100`.

use crate::{Error, Result};
use std::path::PathBuf;
use weft_block::parse_size;
use weft_cache::{AttachOptions, OpenOptions};

/// The settings of one cache.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// The cache: a file or block device.
    pub cache: String,
    /// The name of the source in the cache; `None`: the name that the user gave.
    pub name: Option<String>,
    /// The options for opening the cache.
    pub open: OpenOptions,
    /// The options for attaching the source to it.
    pub attach: AttachOptions,
    /// A TCP address for Prometheus.
    pub metrics: Option<String>,
    /// Networks whose counters are served there too.
    pub networks: Option<std::sync::Arc<weft_transform::Meters>>,
    /// A directory for the control socket; `None`: the cache cannot be controlled while it is in
    /// use.
    pub runtime_dir: Option<PathBuf>,
}

/// The detailed settings: name, value, meaning and, in brackets, the default.
pub const SETTINGS: &[(&str, &str, &str)] = &[
    (
        "commit-ms",
        "MILLISECONDS",
        "the oldest a change of metadata gets before it is logged [1000]",
    ),
    (
        "commit-records",
        "COUNT",
        "changed blocks after which metadata is logged at the latest [4096]",
    ),
    ("dirty-limit", "SIZE", "the most dirty data; writes wait beyond it [half of the cache]"),
    (
        "dirty-age-ms",
        "MILLISECONDS",
        "the oldest dirty data gets before it is written back [30000]",
    ),
    ("writeback-rate", "SIZE", "the most write-back a second below the dirty limit [no limit]"),
    ("writeback-requests", "COUNT", "requests of write-back that are under way at a time [16]"),
    (
        "full-wait-ms",
        "MILLISECONDS",
        "how long a write waits for room while the source takes no dirty data [30000]",
    ),
    (
        "pass-when-failed",
        "yes|no",
        "no: writes to what a failed cache may hold fail if it cannot be marked as out of date [yes]",
    ),
    (
        "intent-idle-ms",
        "MILLISECONDS",
        "how long a region is left alone before its intent is cleared [5000]",
    ),
    ("fill-queue", "SIZE", "the most data that waits to be put into the cache [32M]"),
    ("readahead", "SIZE", "the most that is read ahead of a sequential reader; 0: nothing [8M]"),
    ("retry-max-ms", "MILLISECONDS", "the longest pause before write-back is tried again [30000]"),
    ("samples", "COUNT", "cached blocks compared with the source when it is attached [16]"),
    (
        "sequential",
        "never|when-full|always",
        "when long streams are not put into the cache [when-full]",
    ),
    ("sequential-size", "SIZE", "how long a stream is before it counts as one [4M]"),
    ("second-use", "yes|no", "put a block into the cache at its second use only [no]"),
    ("flash-budget", "SIZE", "the most that reads may write to the cache a day [no limit]"),
    ("verify", "yes|no", "compare checksums at every read, not only at the first [no]"),
];

impl Settings {
    /// Sets one or more `name=value`, separated by commas.
    ///
    /// # Errors
    /// [`Error::Usage`] with the setting that is not understood.
    pub fn set(&mut self, list: &str) -> Result<()> {
        for setting in list.split(',').map(str::trim).filter(|s| !s.is_empty()) {
            let (name, value) = setting
                .split_once('=')
                .ok_or_else(|| Error::Usage(format!("'{setting}' is not NAME=VALUE")))?;
            self.set_one(name, value)?;
        }
        Ok(())
    }

    fn set_one(&mut self, name: &str, value: &str) -> Result<()> {
        let bad = || Error::Usage(format!("invalid value: {name}={value}"));
        let number = || value.parse::<u64>().map_err(|_| bad());
        let yes = || match value {
            "yes" => Ok(true),
            "no" => Ok(false),
            _ => Err(bad()),
        };
        let open = &mut self.open;
        match name {
            "commit-ms" => open.commit_interval_ms = number()?,
            "commit-records" => open.commit_records = value.parse().map_err(|_| bad())?,
            "dirty-limit" => open.dirty_limit_bytes = Some(parse_size(value)?),
            "dirty-age-ms" => open.max_dirty_age_ms = number()?,
            "writeback-rate" => open.writeback_bytes_per_second = Some(parse_size(value)?),
            "intent-idle-ms" => open.intent_idle_ms = number()?,
            "fill-queue" => {
                open.fill_queue_bytes = usize::try_from(parse_size(value)?).map_err(|_| bad())?;
            }
            "readahead" => open.readahead_bytes = parse_size(value)?,
            "writeback-requests" => open.writeback_requests = value.parse().map_err(|_| bad())?,
            "full-wait-ms" => open.full_wait_ms = number()?,
            "pass-when-failed" => open.pass_when_failed = yes()?,
            "retry-max-ms" => open.retry_max_ms = number()?,
            "samples" => self.attach.samples = value.parse().map_err(|_| bad())?,
            "sequential" => open.admission.sequential = value.parse().map_err(|_| bad())?,
            "sequential-size" => open.admission.sequential_bytes = parse_size(value)?,
            "second-use" => open.admission.by_reuse = yes()?,
            "flash-budget" => open.admission.flash_bytes_per_day = Some(parse_size(value)?),
            "verify" => open.verify_always = yes()?,
            _ => {
                let names: Vec<&str> = SETTINGS.iter().map(|(name, ..)| *name).collect();
                return Err(Error::Usage(format!(
                    "unknown cache setting '{name}': expected one of {}",
                    names.join(", ")
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_that_is_listed_is_taken() {
        let mut settings = Settings::default();
        for (name, kind, _) in SETTINGS {
            let value = match *kind {
                "yes|no" => "yes",
                "never|when-full|always" => "always",
                "SIZE" => "1M",
                _ => "7",
            };
            settings.set(&format!("{name}={value}")).unwrap();
            assert!(settings.set(&format!("{name}=-1")).is_err(), "{name}");
        }
        // Setting the documented default changes nothing.
        let mut settings = Settings::default();
        let (open, attach) = (settings.open.clone(), settings.attach.clone());
        for (name, _, meaning) in SETTINGS {
            let default = meaning.strip_suffix(']').and_then(|m| m.rsplit_once('['));
            let (_, default) = default.unwrap_or_else(|| panic!("{name} has no default"));
            if !default.contains(' ') {
                settings.set(&format!("{name}={default}")).unwrap();
            }
        }
        assert_eq!((settings.open, settings.attach), (open, attach));
        let mut settings = Settings::default();
        settings.set("commit-ms=5, dirty-limit=2G,").unwrap();
        assert_eq!(settings.open.commit_interval_ms, 5);
        assert_eq!(settings.open.dirty_limit_bytes, Some(2 << 30));
        assert!(settings.set("commit-ms").is_err() && settings.set("speed=9").is_err());
    }
}
