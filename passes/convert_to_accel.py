"""Turn attention functions into programs of the modelled accelerator."""

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from lampc.dialects import attn_tiled as tiled
from lampc.dialects.accel_launch import LaunchOp
from lampc.errors import UsageError
from lampc.passes.accel_lowering.description import describe
from lampc.passes.accel_lowering.program import ProgramLowering


@dataclass(frozen=True)
class ConvertToAccelPass(ModulePass):
    """
    Replace each `attn.lanes`, FP32 or mixed precision, by an `accel.launch` of a new `accel.program`.

    Every op of the lanes' body becomes the instructions that do it, at its location: one stream that every warp runs, one that keeps
    the rings of key and value tiles filled. Formats, margins, thresholds and roundings are those the ops state; what the machine
    does not have is refused. Scores, shifts and exponentials of a tile share one scores tile: a recomputed sub-block overwrites its
    low scores. A warp without a live entry in a tile leaves it at once. `k-slots` and `v-slots` are the tiles that the rings hold.

    Before:
    ```mlir
    func.func @attention(%q: tensor<1x1x16x8xf32>, %k: tensor<1x1x32x8xf32>, %v: tensor<1x1x32x8xf32>) -> tensor<1x1x16x8xf32> {
      %o = attn.lanes %lane in (batch = 1, heads = 1, group = 1, blocks = 1, warps = 1, rows = 16) -> tensor<1x1x16x8xf32> {
        %query = attn.load_query %q[%lane] : tensor<1x1x16x8xf32> -> tensor<16x8xf32>
        %scaled = attn.scale_query %query {scale = 5.000000e-01 : f32} : tensor<16x8xf32>
        %liveness = attn.liveness %lane {queries = 16 : i64, keys = 32 : i64, causal}
        %mu0, %omega0, %acc0 = attn.softmax_init %lane : tensor<16xf32>, tensor<16xf32>, tensor<16x8xf32>
        %mu_out, %omega_out, %acc_out = attn.tile_loop %t in 1 sub_blocks 2 order "forward" where %liveness iter(%mu = %mu0, %omega = %omega0, %acc = %acc0) : (tensor<16xf32>, tensor<16xf32>, tensor<16x8xf32>) {
          %key = attn.load_tile %k[%lane, %t] : tensor<1x1x32x8xf32> -> tensor<32x8xf32>
          %value = attn.load_tile %v[%lane, %t] : tensor<1x1x32x8xf32> -> tensor<32x8xf32>
          %live = attn.live_entries %liveness[%t] : tensor<32x16xi1>
          %y = attn.scores %key, %scaled : tensor<32x8xf32>, tensor<16x8xf32> -> tensor<32x16xf32>
          %mu1, %omega1, %acc1 = attn.online_softmax %mu, %omega, %acc, %y, %live, %value : tensor<32x16xf32>, tensor<32x16xi1>, tensor<32x8xf32> -> tensor<16xf32>, tensor<16xf32>, tensor<16x8xf32>
          attn.yield %mu1, %omega1, %acc1 : tensor<16xf32>, tensor<16xf32>, tensor<16x8xf32>
        }
        %rows = attn.normalize %acc_out, %omega_out : tensor<16x8xf32>, tensor<16xf32>
        attn.yield %rows : tensor<16x8xf32>
      }
      func.return %o : tensor<1x1x16x8xf32>
    }
    ```
    After `lamp-convert-to-accel`:
    ```mlir
    func.func @attention(%q: tensor<1x1x16x8xf32>, %k: tensor<1x1x32x8xf32>, %v: tensor<1x1x32x8xf32>) -> tensor<1x1x16x8xf32> {
      %o = accel.launch @attention_program(q = %q, k = %k, v = %v) : (tensor<1x1x16x8xf32>, tensor<1x1x32x8xf32>, tensor<1x1x32x8xf32>) -> tensor<1x1x16x8xf32>
      func.return %o : tensor<1x1x16x8xf32>
    }
    accel.program @attention_program {bq = 16 : i64, bk = 16 : i64, nk = 2 : i64, nq = 1 : i64, d = 8 : i64, dv = 8 : i64, lq = 16 : i64, lk = 32 : i64, batch = 1 : i64, hq = 1 : i64, hkv = 1 : i64, scale = 5.000000e-01 : f64, delta = 0.000000e+00 : f64, tau = 1.000000e+00 : f64, tie = "slack", cap = 0.000000e+00 : f64, causal = true, causal_offset = 0 : i64, window = 0 : i64, layout = "safe", policy = "fp32", kv_order = "forward", rounding = "rne", overflow = "saturate", seed = 0 : i64, accumulate_block = 1 : i64, operand = "f32", has_mask = false, has_bias = false, has_sinks = false} {
      %q = accel.descriptor {tensor = "q", type = tensor<1x1x16x8xf32>}
      %k = accel.descriptor {tensor = "k", type = tensor<1x1x32x8xf32>}
      %v = accel.descriptor {tensor = "v", type = tensor<1x1x32x8xf32>}
      %o = accel.descriptor {tensor = "o", type = tensor<1x1x16x8xf32>}
      %k_buffer = accel.buffer {buffer = "k", slots = 3 : i64, bytes = 1024 : i64}
      %k_full = accel.barrier {barrier = "k_full", slots = 3 : i64, expected = 1 : i64}
      %k_empty = accel.barrier {barrier = "k_empty", slots = 3 : i64, expected = 1 : i64}
      %v_buffer = accel.buffer {buffer = "v", slots = 2 : i64, bytes = 1024 : i64}
      %v_full = accel.barrier {barrier = "v_full", slots = 2 : i64, expected = 1 : i64}
      %v_empty = accel.barrier {barrier = "v_empty", slots = 2 : i64, expected = 1 : i64}
      accel.stream "warp" {
        %k_ring = accel.scalar {count = 2 : i64}
        %k_ring_phase = accel.part %k_ring {offset = 1 : i64} : !accel.scalar
        %v_ring = accel.scalar {count = 2 : i64}
        %v_ring_phase = accel.part %v_ring {offset = 1 : i64} : !accel.scalar
        %query = accel.tile {granules = 2 : i64}
        %mu = accel.vector {count = 1 : i64}
        %omega = accel.vector {count = 1 : i64}
        %output = accel.tile {granules = 2 : i64}
        %tiles = accel.scalar {count = 2 : i64}
        %tiles_left = accel.part %tiles {offset = 1 : i64} : !accel.scalar
        %live = accel.mask
        %partial = accel.mask
        %scores = accel.tile {granules = 8 : i64}
        %top = accel.vector {count = 2 : i64}
        %muh = accel.vector {count = 1 : i64}
        %lambda = accel.vector {count = 1 : i64}
        %alpha = accel.vector {count = 1 : i64}
        %none = accel.mask
        accel.inst "s.mov"(sd = %k_ring, imm = 0)
        accel.inst "s.mov"(sd = %k_ring_phase, imm = 0)
        accel.inst "s.mov"(sd = %v_ring, imm = 0)
        accel.inst "s.mov"(sd = %v_ring_phase, imm = 0)
        accel.inst "dma.ldr"(q = %query, desc = %q)
        accel.inst "v.scaleq"(q = %query, value = 5.000000e-01)
        accel.inst "v.const"(vd = %mu, value = -inf)
        accel.inst "v.const"(vd = %omega, value = 0.000000e+00)
        accel.inst "v.zero"(o = %output)
        accel.inst "s.range"(sd = %tiles)
        accel.loop %tiles_left {
          accel.inst "v.live"(pd = %live, pd2 = %partial, tile = %tiles)
          accel.if_mask %live {
            accel.inst "mx.qk.f32"(t = %scores, q = %query, buf = %k_buffer, ring = %k_ring) at %live wait %k_full signal %k_empty
            accel.inst "v.mask.f32"(t = %scores, tile = %tiles) at %partial skip0
            accel.inst "v.rmax.f32"(vd = %top, t = %scores) at %live
            accel.inst "v.vmax"(vd = %muh, va = %mu, vb = %top) at %live
            accel.inst "v.sub.f32"(t = %scores, va = %muh) at %live
            accel.inst "exp.sfu.f32"(t = %scores) at %live
            accel.inst "exp.lambda"(vd = %lambda, va = %mu, vb = %muh)
            accel.inst "v.mul"(vd = %alpha, va = %lambda, vb = %omega)
            accel.inst "p.const"(pd = %none, imm = 0)
            accel.inst "v.rsum.f32"(vd = %omega, va = %alpha, t = %scores, hi = %none) at %live
            accel.inst "v.scale"(o = %output, va = %lambda)
            accel.inst "mx.pv.f32"(o = %output, t = %scores, buf = %v_buffer, ring = %v_ring, hi = %none) at %live wait %v_full signal %v_empty
            accel.inst "v.stat"(pa = %none, pb = %none)
            accel.inst "v.mov"(vd = %mu, va = %muh)
          } else {
            accel.inst "bar.arrive"(bar = %k_empty, ring = %k_ring) wait %k_full
            accel.inst "bar.arrive"(bar = %v_empty, ring = %v_ring) wait %v_full
          }
          accel.inst "s.ring"(ring = %k_ring, imm = 3)
          accel.inst "s.ring"(ring = %v_ring, imm = 2)
          accel.inst "s.add"(sd = %tiles, sa = %tiles, imm = 1)
        }
        accel.inst "v.norm"(o = %output, va = %omega)
        accel.inst "dma.st"(desc = %o, o = %output)
      }
      accel.stream "dma" {
        %k_ring_1 = accel.scalar {count = 2 : i64}
        %k_ring_phase_1 = accel.part %k_ring_1 {offset = 1 : i64} : !accel.scalar
        %v_ring_1 = accel.scalar {count = 2 : i64}
        %v_ring_phase_1 = accel.part %v_ring_1 {offset = 1 : i64} : !accel.scalar
        %tiles_1 = accel.scalar {count = 2 : i64}
        %tiles_left_1 = accel.part %tiles_1 {offset = 1 : i64} : !accel.scalar
        accel.inst "s.mov"(sd = %k_ring_1, imm = 0)
        accel.inst "s.mov"(sd = %k_ring_phase_1, imm = 0)
        accel.inst "s.mov"(sd = %v_ring_1, imm = 0)
        accel.inst "s.mov"(sd = %v_ring_phase_1, imm = 0)
        accel.inst "s.range"(sd = %tiles_1)
        accel.loop %tiles_left_1 {
          accel.inst "dma.ld"(buf = %k_buffer, desc = %k, tile = %tiles_1, ring = %k_ring_1) wait %k_empty xor signal %k_full
          accel.inst "dma.ld"(buf = %v_buffer, desc = %v, tile = %tiles_1, ring = %v_ring_1) wait %v_empty xor signal %v_full
          accel.inst "s.ring"(ring = %k_ring_1, imm = 3)
          accel.inst "s.ring"(ring = %v_ring_1, imm = 2)
          accel.inst "s.add"(sd = %tiles_1, sa = %tiles_1, imm = 1)
        }
      }
    }
    ```
    Source: docs/accelerator.md sections 2 and 3, docs/lampattention.md section 4.
    """  # noqa: E501

    name = "lamp-convert-to-accel"

    k_slots: int = 3
    v_slots: int = 2

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for name, value in (("k-slots", self.k_slots), ("v-slots", self.v_slots)):
            if value < 1:
                raise UsageError(f"option {name}={value}: must be at least 1")
        for function in list(op.body.ops):
            if isinstance(function, FuncOp):
                for number, lanes in enumerate([inner for inner in function.walk() if isinstance(inner, tiled.LanesOp)]):
                    self._convert(function, lanes, number)

    def _convert(self, function: FuncOp, lanes: tiled.LanesOp, number: int) -> None:
        description = describe(lanes)
        name = f"{function.sym_name.data}_program{number or ''}"
        program = ProgramLowering(description, self.k_slots, self.v_slots).lower(name)
        block, inside = function.parent, lanes.parent
        assert block is not None and inside is not None
        block.insert_op_after(program, function)
        launch = LaunchOp(name, description.tensors, lanes.output.type)
        launch.location = lanes.location
        launch.output.name_hint = lanes.output.name_hint
        inside.insert_op_before(launch, lanes)
        lanes.output.replace_all_uses_with(launch.output)
        inside.erase_op(lanes)
