//! Making networks, and checking them when they are attached.

use weft_transform::{Access, Error, Need, Reason, SizeRule, Write};

use crate::common::{network, registry};

fn need(exact_size: bool, random_read: bool, write: Write) -> Need {
    Need { exact_size, random_read, write }
}

#[test]
fn what_networks_can_do() {
    for (text, can) in [
        ("identity", need(true, true, Write::InPlace)),
        ("xor hex=01ff | aead key=work", need(true, true, Write::InPlace)),
        ("zstd | aead key=work", need(true, true, Write::Rewrite)),
        ("guard | gzip", need(true, true, Write::Rewrite)),
        ("lz4 | zstd", need(true, true, Write::None)),
        ("view: upper", need(true, true, Write::None)),
        ("view: rot13", need(true, true, Write::InPlace)),
        ("view: ~base64", need(true, true, Write::Rewrite)),
        ("view: zstd", need(false, false, Write::None)),
        ("view: lines contains=x", need(false, false, Write::None)),
        ("view: ~zstd | lines contains=x", need(false, false, Write::None)),
        ("tee (upper | rot13) | increment", need(true, true, Write::InPlace)),
    ] {
        let network = network(text);
        assert_eq!(network.can(), can, "{text}");
        assert!(network.check(&can).is_ok(), "{text} can do what it can do");
    }
}

#[test]
fn what_a_network_cannot_do_is_refused_with_a_way_out() {
    for (text, asked, stage, reason, nearest) in [
        (
            "zstd | aead key=work",
            need(true, true, Write::InPlace),
            "zstd",
            Reason::RewritesOnly,
            "aead key=work",
        ),
        (
            "view: ~gzip | upper",
            need(true, true, Write::Rewrite),
            "upper",
            Reason::NoInverse,
            "view: ~gzip",
        ),
        (
            "view: lines contains=x",
            need(true, false, Write::None),
            "lines",
            Reason::UnknownSize,
            "view: identity",
        ),
        (
            "view: ~zstd | lines contains=x | rot13",
            need(false, true, Write::None),
            "lines",
            Reason::SequentialOnly,
            "view: ~zstd | rot13",
        ),
        (
            "rot13 | lz4 | zstd",
            need(true, true, Write::Rewrite),
            "lz4",
            Reason::SecondRewriter,
            "rot13 | zstd",
        ),
        (
            "view: zstd",
            need(false, false, Write::Rewrite),
            "zstd",
            Reason::NotWritable,
            "view: identity",
        ),
    ] {
        let refusal = network(text).check(&asked).expect_err(text);
        assert_eq!((refusal.stage, refusal.reason), (stage, reason), "{text}");
        assert_eq!(refusal.nearest.to_string(), nearest, "{text}");
        let way_out = registry().network(&refusal.nearest).expect("made of the same stages");
        assert!(way_out.check(&asked).is_ok(), "{text}: {nearest}");
    }
}

#[test]
fn declarations() {
    let stage = |text: &str| network(text).layers()[0].declares();
    assert_eq!(stage("base64").size, SizeRule::Ratio { input: 4, output: 3 });
    assert_eq!(stage("zstd").size, SizeRule::Indexed);
    assert!(stage("zstd").guards && stage("aead key=work").guards && !stage("hex").guards);
    assert_eq!(stage("~zstd").access, Access::Sequential);
    assert!(!stage("view: charset from=utf-16le").invertible, "there is no UTF-16 encoder");
    assert!(stage("charset from=latin1").invertible);
    assert!(!network("view: aead key=work").is_deterministic());
    assert!(network("aead key=work").is_deterministic());
}

#[test]
fn errors_say_what_would_be_right() {
    for (text, message) in [
        ("zsdt", "unknown stage \"zsdt\" (did you mean \"zstd\"?)"),
        ("frobnicate", "unknown stage \"frobnicate\""),
        ("zstd level=99", "stage zstd: level=99 is not a number from -7 to 22"),
        ("zstd lvl=3", "stage zstd: has no parameter \"lvl\" (it has level, frame)"),
        ("identity x=1", "stage identity: has no parameter \"x\" (it has none)"),
        ("aead", "stage aead: needs key=..."),
        ("aead key=none", "stage aead: no key named \"none\""),
        ("aead key=work block=5000", "stage aead: block=5000 is no power of two"),
        (
            "aead key=work cipher=rot",
            "stage aead: cipher=rot is none of xchacha20poly1305, aes256gcm",
        ),
        ("xor hex=zz", "stage xor: hex=zz is not 1 to 256 bytes in hex digits"),
        (
            "charset from=klingon",
            "stage charset: from=klingon is no character set of the Encoding Standard",
        ),
        ("charset to=utf-16le", "stage charset: cannot write UTF-16LE"),
        ("view: ~upper", "stage upper: has no inverse"),
        ("line-ends", "stage line-ends: needs to=lf or to=crlf"),
        ("lines", "stage lines: needs contains=... or lacks=..."),
        (
            "tee (zstd) | identity",
            "stage tee: \"zstd\" cannot run in a branch: it works not in place",
        ),
        ("log to=nowhere", "stage log: no log named \"nowhere\""),
        ("zstd frame=1G", "stage zstd: frame=1G is not a size from 4096 to 8388608 bytes"),
    ] {
        let error = registry().parse(text).expect_err(text);
        assert_eq!(error.to_string(), message, "{text}");
    }
    assert!(matches!(registry().parse("|"), Err(Error::Text { at: 0, .. })));
}
