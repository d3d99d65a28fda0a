//! A conformance suite for any [`FileSystem`].
//!
//! [`run`] gives each case a fresh file system and reports every case that failed by name. The
//! cases state what Linux promises of a local file system at the level of inodes; where formats
//! differ, [`Limits`] has the expected behaviour. The random comparison drives the file system and
//! [`MemFs`](crate::MemFs) through the same operations, compares them after each one, and shrinks a
//! failing sequence to a short list that is printed with its seed.
//!
//! ```
//! use std::sync::Arc;
//! use weft_vfs::{MemFs, conformance::{self, Limits}};
//! conformance::run(|| Arc::new(MemFs::new()), &Limits { random_runs: 1, ..Limits::default() });
//! ```

mod acls;
mod attributes;
mod bench;
mod compare;
mod content;
mod creating;
#[cfg(test)]
mod faulty;
pub mod forwarding;
mod limits;
mod links;
mod listing;
mod names;
mod opening;
mod operations;
mod random;
mod renaming;
mod seeded;
#[cfg(test)]
mod snapshots;
mod space;
mod threads;
mod times;
mod trees;
pub mod tried;
mod unlinked;
mod xattrs;

pub use limits::Limits;
#[cfg(test)]
pub(crate) use seeded::Random;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::{FileSystem, Result};
use bench::Bench;

/// One property of a file system, named after it.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    run: fn(&Bench<'_>) -> Result<()>,
    /// Whether the format has the feature that the case tests.
    applies: fn(&Limits) -> bool,
    about: &'static str,
}

/// Lists functions as cases under their own names, with the feature that they need if not every
/// format has it.
macro_rules! cases {
    ($($module:ident :: $function:ident $(if $about:ident)?),* $(,)?) => {
        &[$(Case {
            name: concat!(stringify!($module), "::", stringify!($function)),
            run: $module::$function,
            applies: |_limits| true $(&& _limits.$about)?,
            about: concat!($(stringify!($about))?),
        }),*]
    };
}

const CASES: &[Case] = cases![
    names::every_length,
    names::every_byte if any_name_bytes,
    names::too_long_everywhere,
    names::forbidden,
    names::dot_and_dot_dot,
    creating::each_kind,
    creating::existing_name_is_refused,
    creating::parent_must_be_a_directory,
    creating::owner_and_group if owners_and_modes,
    creating::symlink_targets if symlinks,
    creating::create_opens,
    creating::unknown_inode_is_stale,
    links::names_of_one_file if hard_links,
    links::directories_count_their_children,
    links::refused_links if hard_links,
    links::most_names_of_a_file if hard_links,
    links::most_subdirectories if counts_subdirectories,
    renaming::within_and_across_directories,
    renaming::over_a_file,
    renaming::over_itself,
    renaming::two_names_of_one_inode if hard_links,
    renaming::kinds_must_agree,
    renaming::directory_over_directory,
    renaming::directory_across_parents,
    renaming::into_own_subtree,
    renaming::no_replace,
    renaming::exchange_files if exchange,
    renaming::exchange_directories if exchange,
    renaming::exchange_file_and_directory if exchange,
    renaming::refused_renames,
    content::overwrite_and_read_back,
    content::long_file,
    content::read_past_the_end,
    content::sparse_and_far,
    content::longest_file,
    content::cut_and_grow_reads_zeroes,
    content::write_past_the_end_reads_zeroes,
    content::append_handles,
    content::directories_have_no_content,
    opening::closing_keeps_what_was_written,
    opening::each_descriptor_is_closed,
    opening::closing_a_file_without_a_name,
    opening::closing_after_reading,
    content::copy_a_range,
    unlinked::file_lives_while_open,
    unlinked::file_lives_while_referenced,
    unlinked::replaced_file_lives_while_open,
    unlinked::removed_directory_is_dead,
    unlinked::inode_number_is_not_reused_early,
    unlinked::unmount_gives_up_references,
    attributes::mode_and_owner if owners_and_modes,
    attributes::explicit_times,
    attributes::privileges_fall if owners_and_modes,
    attributes::privileges_of_files_alone_fall if owners_and_modes,
    attributes::survive_forgetting,
    times::of_content,
    times::of_names,
    times::of_renames,
    times::of_the_inode,
    listing::empty_directory,
    listing::all_names_with_kinds,
    listing::any_cursor_goes_on,
    listing::removing_while_listing,
    listing::adding_while_listing,
    listing::removing_everything_in_batches,
    listing::plus_takes_references,
    listing::not_a_directory,
    xattrs::set_get_list_remove,
    xattrs::create_and_replace,
    xattrs::values_of_many_sizes,
    xattrs::go_with_the_inode,
    acls::never_a_silent_yes,
    acls::mode_and_list_follow_each_other,
    acls::what_makes_no_sense_is_refused,
    acls::inherited_in_place_of_the_umask,
    acls::long_lists_are_inherited,
    space::allocate if allocate,
    space::punch_and_zero if punch,
    space::seek_data_and_holes,
    space::statfs_follows if counts_space,
    space::full_of_data,
    space::full_of_names,
    trees::deep,
    trees::walk_sees_everything_once,
    trees::remove_tree,
    trees::symbolic_links if symlinks,
    trees::trailing_slashes,
    threads::own_directories,
    threads::one_directory,
    threads::one_file,
    threads::pieces_of_one_file,
    random::agrees_with_the_model,
];

/// Runs all cases, each on a fresh and empty file system from `make`.
///
/// # Panics
/// If a case fails; the message lists all that did.
pub fn run(make: impl Fn() -> Arc<dyn FileSystem>, limits: &Limits) {
    run_checked(make, || Ok(()), limits);
}

/// As [`run`]; after each case the file system is unmounted and dropped, and `check` may inspect
/// the result (run a checker of the format over the image).
///
/// # Panics
/// If a case or its check fails.
pub fn run_checked(
    make: impl Fn() -> Arc<dyn FileSystem>,
    check: impl Fn() -> Result<(), String>,
    limits: &Limits,
) {
    let mut failed = Vec::new();
    for case in CASES {
        if limits.only.as_ref().is_some_and(|only| !case.name.contains(only.as_str())) {
            continue;
        }
        if !(case.applies)(limits) {
            println!("conformance case {} does not apply: no {}", case.name, case.about);
            continue;
        }
        let result = catch_unwind(AssertUnwindSafe(|| -> Result<(), String> {
            let bench = Bench { fs: make(), limits, make: &make };
            (case.run)(&bench).map_err(|e| format!("unexpected error: {e} ({e:?})"))?;
            bench.fs.unmount().map_err(|e| format!("unmount: {e}"))
        }));
        let result = match result {
            Ok(Ok(())) => check(),
            Ok(Err(e)) => Err(e),
            Err(panic) => Err(panic_message(&*panic)),
        };
        if let Err(message) = result {
            eprintln!("conformance case {} failed: {message}", case.name);
            failed.push(case.name);
        }
    }
    assert!(failed.is_empty(), "{} conformance cases failed: {}", failed.len(), failed.join(", "));
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemFs, MemLimits};

    #[test]
    fn model_conforms() {
        let small =
            MemLimits { capacity_bytes: 8 << 20, inodes: 3000, links: 200, ..MemLimits::default() };
        let limits = Limits {
            links: Some(200),
            directory_links: Some(200),
            fill: true,
            xattr_bytes: 64 << 10,
            ..Limits::default()
        };
        run(|| Arc::new(MemFs::with_limits(small)), &limits);
    }
}
