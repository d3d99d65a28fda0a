//! Random operations against a model, with weft's own check every so often.

use crate::volume::{assert_sound, empty, mount, name};
use std::collections::{BTreeMap, BTreeSet};
use weft_block::Rng;
use weft_hfs::layout::{CatalogRecord, Fork, Name, ROOT_ID};
use weft_hfs::volume::New;
use weft_hfs::{Error, Hfs};
use weft_vfs::{Caller, FileSystem, Ino, RenameFlags};

/// The expected content of a volume: folders and files by id, in folders by name.
#[derive(Debug, Clone, Default)]
pub struct Model {
    pub items: BTreeMap<u32, Item>,
}

#[derive(Debug, Clone)]
pub struct Item {
    pub parent: u32,
    pub name: String,
    /// Of a file, its forks.
    pub forks: Option<[Vec<u8>; 2]>,
}

impl Model {
    fn children(&self, parent: u32) -> impl Iterator<Item = (&u32, &Item)> {
        self.items.iter().filter(move |(_, item)| item.parent == parent)
    }

    fn named(&self, parent: u32, name: &str) -> Option<u32> {
        self.children(parent)
            .find(|(_, item)| item.name.eq_ignore_ascii_case(name))
            .map(|(&id, _)| id)
    }

    fn is_below(&self, mut id: u32, above: u32) -> bool {
        while id != ROOT_ID {
            if id == above {
                return true;
            }
            id = self.items[&id].parent;
        }
        false
    }

    /// Compares all of a volume with the model.
    pub fn compare(&self, fs: &Hfs) {
        let mut seen = 0;
        let mut folders = vec![ROOT_ID];
        while let Some(folder) = folders.pop() {
            let items = fs.items(folder).unwrap();
            let mut names: Vec<_> = self.children(folder).map(|(_, item)| &item.name).collect();
            names.sort_by_key(|name| name.to_ascii_lowercase());
            let found: Vec<_> = items
                .iter()
                .map(|(n, _)| String::from_utf8(n.as_bytes().to_vec()).unwrap())
                .collect();
            assert_eq!(found, names.into_iter().cloned().collect::<Vec<_>>(), "folder {folder}");
            for (found, record) in items {
                seen += 1;
                let id = record.id().unwrap();
                let item = &self.items[&id];
                match (&record, &item.forks) {
                    (CatalogRecord::Directory(_), None) => folders.push(id),
                    (CatalogRecord::File(_), Some(forks)) => {
                        for fork in Fork::ALL {
                            let mut got = vec![0; forks[fork.index()].len() + 1];
                            let n = fs.read_fork(folder, &found, fork, 0, &mut got).unwrap();
                            assert!(
                                got[..n] == forks[fork.index()],
                                "{fork:?} fork of {found} in {folder}: {n} bytes"
                            );
                        }
                    }
                    _ => panic!("{found} in {folder} is of another kind"),
                }
            }
        }
        assert_eq!(seen, self.items.len());
    }
}

/// Random operations on a volume and on the model.
pub struct Driver {
    pub rng: Rng,
    pub model: Model,
    /// At most so many items.
    pub items: usize,
    /// Longest write in bytes.
    pub write_bytes: u64,
    /// Names to choose from.
    pub names: u64,
    /// No syncs but those of the test.
    pub syncs_only_by_test: bool,
    /// The test syncs single items, too.
    pub syncs_items: bool,
    /// So many of a hundred operations change names only.
    pub churn: u64,
    /// So many of a hundred operations remove many files of a folder in the order of their names.
    pub sweeps: u64,
    /// An item that the test shall sync now.
    pub urgent: Option<u32>,
    /// Whatever an operation answers is right: for damaged volumes.
    pub careless: bool,
    /// Items that an operation has changed, until the test forgets them.
    pub touched: BTreeSet<u32>,
}

impl Driver {
    pub fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            model: Model::default(),
            items: 400,
            write_bytes: 6000,
            names: 300,
            syncs_only_by_test: false,
            syncs_items: false,
            churn: 0,
            sweeps: 0,
            urgent: None,
            careless: false,
            touched: BTreeSet::new(),
        }
    }

    fn pick(&mut self, file: bool) -> Option<u32> {
        let ids: Vec<u32> = self
            .model
            .items
            .iter()
            .filter(|(_, item)| item.forks.is_some() == file)
            .map(|(&id, _)| id)
            .collect();
        (!ids.is_empty()).then(|| ids[self.rng.below(ids.len() as u64) as usize])
    }

    fn folder(&mut self) -> u32 {
        if self.rng.chance(1, 2) { ROOT_ID } else { self.pick(false).unwrap_or(ROOT_ID) }
    }

    fn name(&mut self) -> String {
        let n = self.rng.below(self.names);
        let base = format!("{}{n}", ["a", "File ", "X long name of some sort "][(n % 3) as usize]);
        if self.rng.chance(1, 4) { base.to_uppercase() } else { base }
    }

    /// One operation.
    pub fn step(&mut self, fs: &Hfs) {
        if self.careless {
            return self.careless_step(fs);
        }
        if self.sweeps > 0 && self.rng.chance(self.sweeps, 100) {
            return self.sweep(fs);
        }
        let crowded = self.model.items.len() >= self.items;
        let names_only = self.churn > 0 && self.rng.chance(self.churn, 100);
        match self.rng.below(if names_only { 45 } else { 100 }) {
            0..20 if !crowded => self.create(fs),
            0..35 => self.delete(fs),
            35..45 => self.rename(fs),
            45..85 => self.write(fs),
            85..97 => self.truncate(fs),
            _ if self.syncs_only_by_test => {}
            _ => fs.sync().unwrap(),
        }
    }

    /// Syncs one item, an urgent one first; returns which.
    pub fn sync_item(&mut self, fs: &Hfs) -> Option<u32> {
        let file = self.rng.chance(3, 4);
        let urgent = self.urgent.take().filter(|id| self.model.items.contains_key(id));
        let id = urgent.or_else(|| self.pick(file))?;
        let item = &self.model.items[&id];
        let entry = fs.lookup(Ino(u64::from(item.parent)), item.name.as_bytes()).unwrap();
        assert_eq!(entry.attr.ino.0, u64::from(id));
        fs.fsync(&Caller::ROOT, entry.attr.ino, false).unwrap();
        fs.forget(entry.attr.ino, 1);
        Some(id)
    }

    fn careless_step(&mut self, fs: &Hfs) {
        let text = self.name();
        let root = Ino(u64::from(ROOT_ID));
        match self.rng.below(6) {
            0 | 1 => drop(fs.create_item(ROOT_ID, &name(&text), &New::FILE)),
            2 => drop(fs.write_fork(ROOT_ID, &name(&text), Fork::Data, 0, &[1; 5000])),
            3 => drop(fs.unlink(&Caller::ROOT, root, text.as_bytes())),
            4 => {
                let other = self.name();
                let flags = RenameFlags::empty();
                drop(fs.rename(
                    &Caller::ROOT,
                    root,
                    text.as_bytes(),
                    root,
                    other.as_bytes(),
                    flags,
                ));
            }
            _ => drop(fs.sync()),
        }
    }

    fn create(&mut self, fs: &Hfs) {
        let (parent, text) = (self.folder(), self.name());
        let folder = self.rng.chance(1, 5);
        let what = if folder {
            New::Folder { info: Default::default(), xinfo: Default::default() }
        } else {
            New::FILE
        };
        let taken = self.model.named(parent, &text).is_some();
        match fs.create_item(parent, &name(&text), &what) {
            Ok(id) => {
                assert!(!taken, "{text} was taken");
                let forks = (!folder).then(Default::default);
                self.touched.insert(id);
                self.model.items.insert(id, Item { parent, name: text, forks });
            }
            Err(Error::Exists) => assert!(taken),
            Err(Error::NoSpace) => {}
            Err(e) => panic!("create: {e}"),
        }
    }

    fn delete(&mut self, fs: &Hfs) {
        let file = self.rng.chance(5, 6);
        let Some(id) = self.pick(file) else { return };
        let item = self.model.items[&id].clone();
        let parent = Ino(u64::from(item.parent));
        if file {
            fs.unlink(&Caller::ROOT, parent, item.name.as_bytes()).unwrap();
        } else if self.model.children(id).next().is_some() {
            let refused = fs.rmdir(&Caller::ROOT, parent, item.name.as_bytes());
            assert!(matches!(refused, Err(weft_vfs::Error::NotEmpty)));
            return;
        } else {
            fs.rmdir(&Caller::ROOT, parent, item.name.as_bytes()).unwrap();
        }
        self.touched.insert(id);
        self.model.items.remove(&id);
    }

    /// Removes files that follow one another, as a program that empties a folder does: whole nodes
    /// of the catalog go, and with them nodes of its index. One of the names may be taken again at
    /// once.
    fn sweep(&mut self, fs: &Hfs) {
        let folder = self.folder();
        let mut items = fs.items(folder).unwrap();
        if self.rng.chance(1, 3) {
            items.reverse();
        }
        let from = self.rng.below(items.len() as u64 + 1) as usize;
        let most = self.rng.below(120) as usize;
        let mut removed = Vec::new();
        for (text, record) in items.into_iter().skip(from).take(most) {
            if let CatalogRecord::File(file) = record {
                fs.delete_item(folder, &text).unwrap();
                self.touched.insert(file.id);
                removed.push(self.model.items.remove(&file.id).unwrap());
            }
        }
        if !removed.is_empty() && self.rng.chance(2, 3) {
            let item = removed.swap_remove(self.rng.below(removed.len() as u64) as usize);
            let id = fs.create_item(folder, &name(&item.name), &New::FILE).unwrap();
            let item = Item { forks: Some(Default::default()), ..item };
            self.model.items.insert(id, item);
            self.touched.insert(id);
            self.urgent = Some(id);
        }
    }

    fn rename(&mut self, fs: &Hfs) {
        let file = self.rng.chance(3, 4);
        let Some(id) = self.pick(file) else { return };
        let (parent, text) = (self.folder(), self.name());
        let item = self.model.items[&id].clone();
        let target = self.model.named(parent, &text).filter(|&t| t != id);
        let result = fs.rename(
            &Caller::ROOT,
            Ino(u64::from(item.parent)),
            item.name.as_bytes(),
            Ino(u64::from(parent)),
            text.as_bytes(),
            RenameFlags::empty(),
        );
        let into_itself = !file && self.model.is_below(parent, id);
        match result {
            Ok(()) => {
                assert!(!into_itself);
                self.touched.insert(id);
                if let Some(target) = target {
                    self.touched.insert(target);
                    let replaced = self.model.items.remove(&target).unwrap();
                    assert_eq!(replaced.forks.is_some(), file);
                }
                let item = self.model.items.get_mut(&id).unwrap();
                (item.parent, item.name) = (parent, text);
            }
            Err(weft_vfs::Error::NoSpace) => {}
            Err(e) => {
                let kinds = target.is_some_and(|t| {
                    let other = &self.model.items[&t];
                    other.forks.is_some() != file || self.model.children(t).next().is_some()
                });
                assert!(into_itself || kinds, "rename: {e}");
            }
        }
    }

    fn write(&mut self, fs: &Hfs) {
        let Some(id) = self.pick(true) else { return };
        let fork = Fork::ALL[self.rng.below(2) as usize];
        self.touched.insert(id);
        let item = self.model.items.get_mut(&id).unwrap();
        let content = &mut item.forks.as_mut().unwrap()[fork.index()];
        let at = match self.rng.below(4) {
            0 => self.rng.below(content.len() as u64 + 2000),
            1 => self.rng.below(content.len() as u64 + 1),
            _ => content.len() as u64,
        };
        let byte = self.rng.below(255) as u8 + 1;
        let data: Vec<u8> =
            (0..self.rng.below(self.write_bytes) + 1).map(|i| byte ^ (i as u8)).collect();
        let text = name(&item.name);
        match fs.write_fork(item.parent, &text, fork, at, &data) {
            Ok(n) => {
                let end = at as usize + n;
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[at as usize..end].copy_from_slice(&data[..n]);
            }
            Err(Error::NoSpace) => {}
            Err(e) => panic!("write: {e}"),
        }
    }

    fn truncate(&mut self, fs: &Hfs) {
        let Some(id) = self.pick(true) else { return };
        let fork = Fork::ALL[self.rng.below(2) as usize];
        self.touched.insert(id);
        let item = self.model.items.get_mut(&id).unwrap();
        let content = &mut item.forks.as_mut().unwrap()[fork.index()];
        let len = self.rng.below(content.len() as u64 + 3000);
        match fs.truncate_fork(item.parent, &name(&item.name), fork, len) {
            Ok(()) => content.resize(len as usize, 0),
            Err(Error::NoSpace) => {}
            Err(e) => panic!("truncate: {e}"),
        }
    }
}

fn run(seed: u64, bytes: u64, steps: usize, every: usize, setup: impl FnOnce(&mut Driver)) {
    println!("seed {seed}, {bytes} bytes, {steps} steps");
    let device = empty(bytes);
    let mut fs = mount(&device);
    let mut driver = Driver::new(seed);
    setup(&mut driver);
    for step in 1..=steps {
        driver.step(&fs);
        if step % every == 0 {
            fs.sync().unwrap();
            assert_sound(&*device);
            driver.model.compare(&fs);
            if driver.rng.chance(1, 3) {
                fs.unmount().unwrap();
                assert_sound(&*device);
                fs = mount(&device);
            }
        }
    }
    fs.unmount().unwrap();
    assert_sound(&*device);
    driver.model.compare(&mount(&device));
}

#[test]
fn small_volumes_run_full() {
    for seed in 0..6 {
        run(seed, 400 << 10 | (seed * 512), 3000, 500, |_| {});
    }
}

#[test]
fn volumes_of_all_sizes() {
    for (seed, bytes) in [(10, 819_200), (11, 1_474_560), (12, 33 << 20), (13, 3 << 30)] {
        run(seed, bytes, 2500, 500, |_| {});
    }
}

#[test]
fn files_in_many_pieces() {
    for seed in 20..23 {
        run(seed, 2 << 20, 5000, 1000, |driver| {
            driver.items = 30;
            driver.write_bytes = 900;
        });
    }
}

#[test]
fn many_names() {
    run(30, 24 << 20, 12_000, 4000, |driver| {
        driver.items = 10_000;
        driver.names = 100_000;
        driver.write_bytes = 20;
    });
}

/// A hundred thousand operations, with the check after every thousand.
#[test]
fn a_hundred_thousand_operations() {
    let sizes = [400 << 10, 819_200, 5 << 20, 100 << 20, 1 << 31];
    for (seed, bytes) in (1000..).zip(sizes) {
        run(seed, bytes, 20_000, 1000, |driver| driver.items = 2000);
    }
}

#[test]
fn thirty_thousand_files_in_a_folder() {
    let device = empty(64 << 20);
    let fs = mount(&device);
    for i in 0..30_000_u32 {
        let text = format!("{:05}", i.wrapping_mul(7919) % 30_000);
        fs.create_item(ROOT_ID, &name(&text), &New::FILE).unwrap();
    }
    fs.unmount().unwrap();
    assert_sound(&*device);
    let fs = mount(&device);
    assert_eq!(fs.items(ROOT_ID).unwrap().len(), 30_000);
    for i in 0..30_000 {
        fs.unlink(&Caller::ROOT, Ino(2), format!("{i:05}").as_bytes()).unwrap();
    }
    fs.unmount().unwrap();
    assert_sound(&*device);
}

#[test]
fn names_are_refused_that_hfs_cannot_have() {
    let device = empty(1 << 20);
    let fs = mount(&device);
    for text in ["", "a:b", "a\0b"] {
        let bad = Name::any(text.as_bytes()).unwrap();
        let refused = fs.create_item(ROOT_ID, &bad, &New::FILE);
        assert!(matches!(refused, Err(Error::BadName(_))), "{refused:?}");
    }
    assert_eq!(Name::new(&[b'x'; 32]), Err(Error::NameTooLong));
    fs.create_item(ROOT_ID, &name("one"), &New::FILE).unwrap();
    let past = fs.write_fork(ROOT_ID, &name("one"), Fork::Data, (1 << 31) - 1, b"x");
    assert_eq!(past, Err(Error::TooLarge));
    assert_eq!(fs.truncate_fork(ROOT_ID, &name("one"), Fork::Data, 1 << 31), Err(Error::TooLarge));
    fs.unmount().unwrap();
    assert_sound(&*device);
}
