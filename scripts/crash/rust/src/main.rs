//! Rust key-value stores as subjects of crash tests: `crash-subjects KIND setup|run|check`.
//!
//! `setup` stores pair 0; `run` stores pairs 1 to 3, each pair in one transaction that the store
//! promises to be durable, and says `done N` after it; `check` demands whole values, both of a pair
//! or neither, and each pair that was promised.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::Write;

/// Pairs that `run` stores.
const PAIRS: u32 = 3;

type Failure = Box<dyn std::error::Error>;

/// A store that keeps the two halves of a pair in one transaction.
trait Store {
    fn put(&mut self, pair: [(String, Vec<u8>); 2]) -> Result<(), Failure>;
    fn all(&mut self) -> Result<BTreeMap<String, Vec<u8>>, Failure>;
}

fn value(key: &str) -> Vec<u8> {
    key.repeat(2500).into_bytes()
}

fn pair(number: u32) -> [(String, Vec<u8>); 2] {
    ["a", "b"].map(|half| {
        let key = format!("{half}{number}");
        let value = value(&key);
        (key, value)
    })
}

struct Redb(redb::Database);
const TABLE: redb::TableDefinition<&str, &[u8]> = redb::TableDefinition::new("pairs");

impl Store for Redb {
    fn put(&mut self, pair: [(String, Vec<u8>); 2]) -> Result<(), Failure> {
        let transaction = self.0.begin_write()?;
        {
            let mut table = transaction.open_table(TABLE)?;
            for (key, value) in &pair {
                table.insert(key.as_str(), value.as_slice())?;
            }
        }
        Ok(transaction.commit()?)
    }

    fn all(&mut self) -> Result<BTreeMap<String, Vec<u8>>, Failure> {
        use redb::{ReadableDatabase, ReadableTable};
        let table = self.0.begin_read()?.open_table(TABLE)?;
        let mut found = BTreeMap::new();
        for entry in table.iter()? {
            let (key, value) = entry?;
            found.insert(key.value().to_owned(), value.value().to_owned());
        }
        Ok(found)
    }
}

struct Sled(sled::Db);

impl Store for Sled {
    fn put(&mut self, pair: [(String, Vec<u8>); 2]) -> Result<(), Failure> {
        let mut batch = sled::Batch::default();
        for (key, value) in pair {
            batch.insert(key.as_bytes(), value);
        }
        self.0.apply_batch(batch)?;
        self.0.flush()?;
        Ok(())
    }

    fn all(&mut self) -> Result<BTreeMap<String, Vec<u8>>, Failure> {
        let mut found = BTreeMap::new();
        for entry in self.0.iter() {
            let (key, value) = entry?;
            found.insert(String::from_utf8(key.to_vec())?, value.to_vec());
        }
        Ok(found)
    }
}

struct Fjall(fjall::Database, fjall::Keyspace);

impl Store for Fjall {
    fn put(&mut self, pair: [(String, Vec<u8>); 2]) -> Result<(), Failure> {
        let mut batch = self.0.batch();
        for (key, value) in pair {
            batch.insert(&self.1, key, value);
        }
        batch.commit()?;
        Ok(self.0.persist(fjall::PersistMode::SyncAll)?)
    }

    fn all(&mut self) -> Result<BTreeMap<String, Vec<u8>>, Failure> {
        let mut found = BTreeMap::new();
        for entry in self.1.iter() {
            let (key, value) = entry.into_inner()?;
            found.insert(String::from_utf8(key.to_vec())?, value.to_vec());
        }
        Ok(found)
    }
}

struct Persy(persy::Persy);

impl Store for Persy {
    fn put(&mut self, pair: [(String, Vec<u8>); 2]) -> Result<(), Failure> {
        let mut transaction = self.0.begin().map_err(|e| e.to_string())?;
        if !self.0.exists_segment("pairs").map_err(|e| e.to_string())? {
            transaction.create_segment("pairs").map_err(|e| e.to_string())?;
        }
        for (key, value) in pair {
            let mut record = key.into_bytes();
            record.push(b'=');
            record.extend(value);
            transaction.insert("pairs", &record).map_err(|e| e.to_string())?;
        }
        transaction.prepare().map_err(|e| e.to_string())?.commit().map_err(|e| e.to_string())?;
        Ok(())
    }

    fn all(&mut self) -> Result<BTreeMap<String, Vec<u8>>, Failure> {
        let mut found = BTreeMap::new();
        for (_, record) in self.0.scan("pairs").map_err(|e| e.to_string())? {
            let at = record.iter().position(|&byte| byte == b'=').ok_or("a record without a key")?;
            found.insert(String::from_utf8(record[..at].to_vec())?, record[at + 1..].to_vec());
        }
        Ok(found)
    }
}

fn open(kind: &str) -> Result<Box<dyn Store>, Failure> {
    Ok(match kind {
        "redb" => Box::new(Redb(redb::Database::create("db")?)),
        "sled" => Box::new(Sled(sled::open("db")?)),
        "fjall" => {
            let database = fjall::Database::builder("db").worker_threads(1).open()?;
            let keyspace =
                database.keyspace("pairs", fjall::KeyspaceCreateOptions::default)?;
            Box::new(Fjall(database, keyspace))
        }
        "persy" => Box::new(Persy(
            persy::Persy::open_or_create_with("db", persy::Config::new(), |_| Ok(()))
                .map_err(|e| e.to_string())?,
        )),
        _ => return Err(format!("no store is called {kind}").into()),
    })
}

fn check(store: &mut dyn Store) -> Result<(), Failure> {
    let found = store.all()?;
    for (key, stored) in &found {
        if *stored != value(key) {
            return Err(format!("the value of {key} is not as it was stored").into());
        }
    }
    let mut promised = vec![0];
    for line in fs::read_to_string(env::var("WEFT_PROMISES")?)?.lines() {
        promised.push(line.rsplit(' ').next().unwrap_or("").parse()?);
    }
    for number in 0..=PAIRS {
        let halves = pair(number).map(|(key, _)| found.contains_key(&key));
        if halves[0] != halves[1] {
            return Err(format!("half of pair {number} is there").into());
        }
        if !halves[0] && promised.contains(&number) {
            return Err(format!("pair {number} was promised, and is not there").into());
        }
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = env::args().collect();
    let [_, kind, action] = arguments.as_slice() else {
        return Err("usage: crash-subjects KIND setup|run|check".into());
    };
    let mut store = open(kind)?;
    match action.as_str() {
        "setup" => store.put(pair(0)),
        "run" => {
            for number in 1..=PAIRS {
                store.put(pair(number))?;
                println!("done {number}");
                std::io::stdout().flush()?;
            }
            Ok(())
        }
        "check" => check(store.as_mut()),
        _ => Err(format!("no action is called {action}").into()),
    }
}
