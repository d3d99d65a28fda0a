;; Adds one to every byte, and takes it away: 128 bytes a turn, then the rest one by one.
(module
  (memory (export "memory") 10)
  (global $free (mut i32) (i32.const 65536))

  (func (export "weft_buffer") (param $bytes i32) (result i32)
    (global.get $free)
    (global.set $free (i32.add (global.get $free) (local.get $bytes))))

  (func $add (param $at i32) (param $len i32) (param $by v128) (result i32)
    (local $end i32)
    (local.set $end (i32.add (local.get $at) (local.get $len)))
    (block $rest
      (loop $wide
        (br_if $rest
          (i32.lt_u (i32.sub (local.get $end) (local.get $at)) (i32.const 128)))
        (v128.store offset=0 (local.get $at)
          (i8x16.add (v128.load offset=0 (local.get $at)) (local.get $by)))
        (v128.store offset=16 (local.get $at)
          (i8x16.add (v128.load offset=16 (local.get $at)) (local.get $by)))
        (v128.store offset=32 (local.get $at)
          (i8x16.add (v128.load offset=32 (local.get $at)) (local.get $by)))
        (v128.store offset=48 (local.get $at)
          (i8x16.add (v128.load offset=48 (local.get $at)) (local.get $by)))
        (v128.store offset=64 (local.get $at)
          (i8x16.add (v128.load offset=64 (local.get $at)) (local.get $by)))
        (v128.store offset=80 (local.get $at)
          (i8x16.add (v128.load offset=80 (local.get $at)) (local.get $by)))
        (v128.store offset=96 (local.get $at)
          (i8x16.add (v128.load offset=96 (local.get $at)) (local.get $by)))
        (v128.store offset=112 (local.get $at)
          (i8x16.add (v128.load offset=112 (local.get $at)) (local.get $by)))
        (local.set $at (i32.add (local.get $at) (i32.const 128)))
        (br $wide)))
    (block $done
      (loop $narrow
        (br_if $done (i32.ge_u (local.get $at) (local.get $end)))
        (i32.store8 (local.get $at)
          (i32.add (i32.load8_u (local.get $at)) (i8x16.extract_lane_u 0 (local.get $by))))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br $narrow)))
    (i32.const 0))

  (func (export "weft_bytes") (param $at i32) (param $len i32) (param $offset i64) (result i32)
    (call $add (local.get $at) (local.get $len) (i8x16.splat (i32.const 1))))

  (func (export "weft_bytes_inverse") (param $at i32) (param $len i32) (param $offset i64) (result i32)
    (call $add (local.get $at) (local.get $len) (i8x16.splat (i32.const -1)))))
