//! New volumes, and checks. `unsafe` as all functions for C.

use crate::argument::{flags, reference, store, take, text};
use crate::error::{status, Failure, Result};
use std::ffi::{c_char, c_int, CString};
use weft::check::{check, Options};

/// Overwrites a file system that the image holds already.
pub const WEFT_MKFS_FORCE: u32 = 1;
/// Repairs what is found.
pub const WEFT_CHECK_REPAIR: u32 = 1;

/// The findings of a check.
#[derive(Debug)]
pub struct weft_report {
    problems: Vec<CString>,
}

/// Makes a volume in `image`, of `size_bytes` or, with 0, of the whole file or device. A file that does
/// not exist is made, one that is too short grows. `format` is "ext2", "ext3", "hfs" or "mfs"; `label`
/// is the volume's name, or NULL; `flags` are 0 or WEFT_MKFS_FORCE. -EINVAL: the size or the label does
/// not fit the format, or the image holds a file system and is not to be overwritten.
#[no_mangle]
pub unsafe extern "C" fn weft_mkfs(
    image: *const c_char,
    format: *const c_char,
    size_bytes: u64,
    label: *const c_char,
    flags: u32,
) -> c_int {
    // SAFETY: the caller's.
    status(|| unsafe { mkfs(image, format, size_bytes, label, flags) })
}

unsafe fn mkfs(
    image: *const c_char,
    format: *const c_char,
    size_bytes: u64,
    label: *const c_char,
    given: u32,
) -> Result<c_int> {
    // SAFETY: the caller's.
    let (image, format) = unsafe { (text(image, "image")?, text(format, "format")?) };
    let label = match label.is_null() {
        true => "",
        // SAFETY: the caller's.
        false => unsafe { text(label, "label") }?,
    };
    let force = flags(given, WEFT_MKFS_FORCE)? != 0;
    let size = Some(size_bytes).filter(|&size| size > 0);
    weft::mkfs::make_named(image, format, size, label, force)?;
    Ok(0)
}

/// Checks the volume in `source`, which must not be in use, and repairs it with WEFT_CHECK_REPAIR in
/// `flags`. Returns 0 if no problem remains, 1 if some do. `report` may be NULL; else what was found is
/// stored there, to be freed with weft_report_free().
#[no_mangle]
pub unsafe extern "C" fn weft_check(
    source: *const c_char,
    flags: u32,
    report: *mut *mut weft_report,
) -> c_int {
    status(|| {
        let mut remain = false;
        let mut make = || {
            // SAFETY: the caller's.
            let (found, some_remain) = unsafe { checked(source, flags) }?;
            remain = some_remain;
            Ok(found)
        };
        match report.is_null() {
            true => drop(make()?),
            // SAFETY: the caller's.
            false => unsafe { store(report, "report", make) }?,
        }
        Ok(c_int::from(remain))
    })
}

unsafe fn checked(source: *const c_char, given: u32) -> Result<(weft_report, bool)> {
    // SAFETY: the caller's.
    let source = unsafe { text(source, "source") }?;
    let options = match flags(given, WEFT_CHECK_REPAIR)? {
        0 => Options::default(),
        _ => Options::repair(),
    };
    let found = check(source, &options)?;
    let problems = found
        .problems()
        .into_iter()
        .map(|problem| CString::new(problem.replace('\0', "\u{fffd}")).unwrap_or_default());
    Ok((weft_report { problems: problems.collect() }, !found.is_sound()))
}

/// Returns how many problems a check has found, those that were repaired too.
#[no_mangle]
pub unsafe extern "C" fn weft_report_count(report: *const weft_report) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let report = unsafe { reference(report, "the report") }?;
        Ok(c_int::try_from(report.problems.len()).unwrap_or(c_int::MAX))
    })
}

/// Stores problem number `index`, from 0 on, as one line of UTF-8. It belongs to the report, and is
/// valid until that is freed. -ERANGE: there is no such problem.
#[no_mangle]
pub unsafe extern "C" fn weft_report_problem(
    report: *const weft_report,
    index: c_int,
    problem: *mut *const c_char,
) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let (report, problem) = unsafe {
            (reference(report, "the report")?, crate::argument::place(problem, "problem")?)
        };
        let found = usize::try_from(index).ok().and_then(|index| report.problems.get(index));
        let found =
            found.ok_or_else(|| Failure::new(libc::ERANGE, format!("no problem number {index}")));
        *problem = found?.as_ptr();
        Ok(0)
    })
}

/// Frees a report and its problems.
#[no_mangle]
pub unsafe extern "C" fn weft_report_free(report: *mut weft_report) {
    // SAFETY: the caller's.
    status(|| {
        drop(unsafe { take(report) });
        Ok(0)
    });
}
