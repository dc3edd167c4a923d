// A C interface to the ATen kernels that tch does not bind.
//
// Arguments are borrowed `at::Tensor*` (from `tch::Tensor::as_ptr`), results are owned ones (for
// `tch::Tensor::from_ptr`), null for a gradient that was not asked for. Every function returns null, or an error message
// that the caller frees; no exception leaves this file.

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

using at::Tensor;

namespace {

Tensor *owned(Tensor tensor) { return tensor.defined() ? new Tensor(std::move(tensor)) : nullptr; }

// `x` in the memory layout of `model`: kernels are fast if all their tensors share one.
Tensor in_layout_of(const Tensor &x, const Tensor &model) { return x.contiguous(model.suggest_memory_format()); }

std::vector<Tensor> list_of(const Tensor *const *tensors, size_t length) {
    std::vector<Tensor> list;
    list.reserve(length);
    for (size_t number = 0; number < length; ++number) list.push_back(*tensors[number]);
    return list;
}

template <typename Body> char *guarded(Body body) {
    try {
        at::NoGradGuard no_grad;
        body();
        return nullptr;
    } catch (const std::exception &error) {
        return strdup(error.what());
    } catch (...) {
        return strdup("an exception without a message");
    }
}

// `at::cuda::CUDAGraph`, whose members `graph.rs` looks up: this file is built without the CUDA headers that declare it.
// The first stream is that of the thread before it began to record.
struct Graph {
    using Pool = std::pair<unsigned long long, unsigned long long>;
    void (*begin)(void *, Pool, int);
    void (*end)(void *);
    void (*replay)(void *);
    void (*destroy)(void *);
    c10::Stream before;
    // The class takes less than a third of it.
    alignas(std::max_align_t) unsigned char object[1024];

    Graph(void *const *members, c10::Stream before)
        : begin(reinterpret_cast<decltype(begin)>(members[1])), end(reinterpret_cast<decltype(end)>(members[2])),
          replay(reinterpret_cast<decltype(replay)>(members[3])),
          destroy(reinterpret_cast<decltype(destroy)>(members[4])), before(before) {
        reinterpret_cast<void (*)(void *, bool)>(members[0])(object, /*keep_graph=*/false);
    }
    Graph(const Graph &) = delete;
    ~Graph() { destroy(object); }
};

} // namespace

// burn-tch references these two functions to make the linker include libtorch_cuda. Defining them here prevents that:
// `cuda.rs` loads the library at run time if needed. They are hidden so that the library does not bind to them itself.
namespace at::cuda {
__attribute__((visibility("hidden"))) void *getCurrentCUDABlasHandle() { return nullptr; }
__attribute__((visibility("hidden"))) int warp_size() { return 0; }
} // namespace at::cuda

extern "C" {

// running * (1 - momentum) + batch * momentum of each pair, in place.
char *kiln_running(const Tensor *const *running, const Tensor *const *batch, size_t length, double momentum) {
    return guarded([&] {
        std::vector<Tensor> averages = list_of(running, length);
        at::_foreach_mul_(averages, 1.0 - momentum);
        at::_foreach_add_(averages, list_of(batch, length), momentum);
    });
}

// Each count plus one, in place.
char *kiln_counted(const Tensor *const *counts, size_t length) {
    return guarded([&] { at::_foreach_add_(list_of(counts, length), at::Scalar(1)); });
}

// Gradients of input, weight and bias of a batch-norm over this batch; mask: 1 input, 2 weight and bias.
char *kiln_batch_norm_backward(Tensor **dx, Tensor **dweight, Tensor **dbias, const Tensor *gradient, const Tensor *x,
                               const Tensor *weight, const Tensor *mean, const Tensor *inv_std, int mask) {
    return guarded([&] {
        std::array<bool, 3> wanted{(mask & 1) != 0, (mask & 2) != 0, (mask & 2) != 0};
        auto result = at::native_batch_norm_backward(in_layout_of(*gradient, *x), *x, *weight, std::nullopt, std::nullopt,
                                                     *mean, *inv_std, /*train=*/true, /*eps=*/0.0, wanted);
        *dx = owned(std::get<0>(result));
        *dweight = owned(std::get<1>(result));
        *dbias = owned(std::get<2>(result));
    });
}

// Gradients of a convolution without bias, dilation and groups; mask: 1 input, 2 weight.
char *kiln_convolution_backward(Tensor **dx, Tensor **dweight, const Tensor *gradient, const Tensor *x,
                                const Tensor *weight, int64_t stride, int64_t padding, int64_t groups, int mask) {
    return guarded([&] {
        const std::array<int64_t, 2> strides{stride, stride}, paddings{padding, padding}, ones{1, 1}, zeros{0, 0};
        std::array<bool, 3> wanted{(mask & 1) != 0, (mask & 2) != 0, false};
        auto result = at::convolution_backward(in_layout_of(*gradient, *x), *x, *weight, std::nullopt, strides, paddings,
                                               ones, /*transposed=*/false, zeros, groups, wanted);
        *dx = owned(std::get<0>(result));
        *dweight = owned(std::get<1>(result));
    });
}

// One step of SGD: `param` and `velocity` change in place; the velocity is null without momentum. All must be contiguous:
// the kernel does not check it. `rate_there`, unless null, is the rate on the device.
char *kiln_sgd(Tensor *param, const Tensor *gradient, Tensor *velocity, const Tensor *rate_there, double rate,
               double momentum, double weight_decay, int nesterov, int first) {
    return guarded([&] {
        std::vector<Tensor> velocities;
        if (velocity != nullptr) velocities.push_back(*velocity);
        auto step = [&](const auto &rate) {
            at::_fused_sgd_({*param}, {*gradient}, velocities, weight_decay, momentum, rate, /*dampening=*/0.0,
                            nesterov != 0, /*maximize=*/false, first != 0);
        };
        if (rate_there != nullptr) step(*rate_there);
        else step(rate);
    });
}

// One step of AdamW: `param` and both moments change in place. All must be contiguous. `rate_there` and `step_there`,
// unless null, are the rate and the number of the step on the device.
char *kiln_adamw(Tensor *param, const Tensor *gradient, Tensor *first, Tensor *second, const Tensor *rate_there,
                 const Tensor *step_there, double rate, double beta1, double beta2, double eps, double weight_decay,
                 double step) {
    return guarded([&] {
        Tensor steps = step_there != nullptr ? *step_there : at::full({}, step, param->options());
        auto update = [&](const auto &rate) {
            at::_fused_adamw_({*param}, {*gradient}, {*first}, {*second}, /*max_exp_avg_sqs=*/{}, {steps}, rate, beta1,
                              beta2, weight_decay, eps, /*amsgrad=*/false, /*maximize=*/false);
        };
        if (rate_there != nullptr) update(*rate_there);
        else update(rate);
    });
}

// Calls `work` with each number below `count` on the threads of ATen's operations; `work` must not throw. Not
// `at::parallel_for`: in a new thread that uses the number of threads that another thread set last.
void kiln_parallel_for(int64_t count, void (*work)(void *, int64_t), void *context) {
    // A region of one thread would make a region within it nested, for which OpenMP starts new threads each time.
    if (count == 1) return work(context, 0);
#pragma omp parallel for schedule(static)
    for (int64_t number = 0; number < count; ++number) work(context, number);
}

// A copy of `x` on a CUDA device, by way of pinned memory: neither this thread nor the device waits.
char *kiln_to_cuda(Tensor **y, const Tensor *x, int index) {
    return guarded([&] {
        Tensor pinned = at::empty(x->sizes(), x->options().pinned_memory(true));
        pinned.copy_(*x);
        auto device = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
        *y = owned(pinned.to(device, x->scalar_type(), /*non_blocking=*/true));
    });
}

// The end of the queue of the device that `x` is on; null on the CPU, which has none.
char *kiln_record(c10::Event **event, const Tensor *x) {
    return guarded([&] {
        if (x->is_cpu()) return;
        auto end = std::make_unique<c10::Event>(x->device().type());
        end->record(c10::impl::VirtualGuardImpl(x->device().type()).getStream(x->device()));
        *event = end.release();
    });
}

// Waits for an event, unless it is null.
char *kiln_wait(const c10::Event *event) {
    return guarded([&] {
        if (event != nullptr) event->synchronize();
    });
}

void kiln_forget(c10::Event *event) { delete event; }

// Begins to record what this thread queues on a CUDA device, on a stream of its own, since the default stream cannot be
// recorded. Other threads may go on to use the device: 1 is cudaStreamCaptureModeThreadLocal.
char *kiln_graph_begin(Graph **graph, void *const *members, int index) {
    return guarded([&] {
        c10::impl::VirtualGuardImpl guard(at::kCUDA);
        auto device = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
        auto begun = std::make_unique<Graph>(members, guard.getStream(device));
        guard.exchangeStream(guard.getStreamFromGlobalPool(device));
        try {
            begun->begin(begun->object, Graph::Pool{0, 0}, 1);
        } catch (...) {
            guard.exchangeStream(begun->before);
            throw;
        }
        *graph = begun.release();
    });
}

// Ends that on the same thread, which then has its stream again.
char *kiln_graph_end(Graph *graph) {
    return guarded([&] {
        c10::impl::VirtualGuardImpl guard(at::kCUDA);
        try {
            graph->end(graph->object);
        } catch (...) {
            guard.exchangeStream(graph->before);
            throw;
        }
        guard.exchangeStream(graph->before);
    });
}

// Queues what was recorded on this thread's stream.
char *kiln_graph_replay(Graph *graph) {
    return guarded([&] { graph->replay(graph->object); });
}

void kiln_graph_forget(Graph *graph) { delete graph; }

// Whether cuDNN may choose convolutions by their speed, or only among those with the same bits every time.
void kiln_choose_kernels(int deterministic) {
    at::globalContext().setDeterministicCuDNN(deterministic != 0);
    at::globalContext().setBenchmarkCuDNN(deterministic == 0);
}

// `x` in the memory layout of `model`.
char *kiln_in_layout_of(Tensor **y, const Tensor *x, const Tensor *model) {
    return guarded([&] { *y = owned(in_layout_of(*x, *model)); });
}
}
