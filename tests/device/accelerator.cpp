// A simulated accelerator for tests: torch's PrivateUse1 device in host memory, as strict as a GPU.
//
// Every operation runs torch's CPU kernel on the same memory. As on a GPU, an operation that mixes in a
// tensor of the CPU (other than a scalar) raises, and code of the CPU cannot read a tensor of the device:
// its address is not one of memory, so a kernel that follows it ends the process. Random numbers come from
// a generator of its own.

#include <atomic>
#include <cstring>
#include <mutex>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

namespace {

constexpr auto kAccelerator = c10::DeviceType::PrivateUse1;
constexpr auto kKey = c10::DispatchKey::PrivateUse1;
// No memory of a process has an address with this bit, on x86-64 or AArch64 (which ignores the bits from 56 on).
constexpr uintptr_t kMark = uintptr_t{1} << 54;

c10::Device the_device() {
  return {kAccelerator, 0};
}

void* marked(void* memory) {
  return memory == nullptr ? nullptr : reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(memory) | kMark);
}

void* memory_of(const void* address) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(address) & ~kMark);
}

std::atomic<int64_t> operations{0};

at::Generator& generator() {
  static at::Generator made = at::detail::createCPUGenerator(0);
  return made;
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = bytes == 0 ? nullptr : c10::alloc_cpu(bytes);
    return {marked(memory), memory, &c10::free_cpu, the_device()};
  }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    std::memcpy(memory_of(target), memory_of(source), bytes);
  }
};

Allocator allocator;
REGISTER_ALLOCATOR(kAccelerator, &allocator);

// One device with one stream, on which everything is done at once.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kAccelerator; }
  c10::Device exchangeDevice(c10::Device) const override { return the_device(); }
  c10::Device getDevice() const override { return the_device(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const override { return stream(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}

 private:
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, the_device()); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return generator(); }
  at::Device getDeviceFromPtr(void*) const override { return the_device(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto grown = allocator.allocate(bytes);
    const auto kept = std::min(bytes, storage.nbytes());
    if (kept > 0) {
      std::memcpy(memory_of(grown.get()), memory_of(storage.data()), kept);
    }
    storage.unsafeGetStorageImpl()->set_data_ptr(std::move(grown));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

Hooks hooks;
const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();

bool on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kAccelerator;
}

// The same memory as a tensor of the CPU; what is on the CPU stays as it is.
at::Tensor on_host(const at::Tensor& tensor) {
  if (!on_device(tensor)) {
    return tensor;
  }
  const auto& storage = tensor.storage();
  c10::DataPtr memory(memory_of(storage.data()), c10::Device(c10::DeviceType::CPU));
  c10::Storage same(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(memory), c10::GetCPUAllocator(), true);
  auto host = at::detail::make_tensor<c10::TensorImpl>(
      std::move(same), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  host.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return host;
}

// The tensors of one call: what was given, and the same memory as the CPU's kernel sees it.
class Arguments {
 public:
  explicit Arguments(std::string operation) : operation_(std::move(operation)) {}

  at::Tensor take(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      return tensor;
    }
    if (!on_device(tensor)) {
      foreign_ = foreign_ || (tensor.is_cpu() && tensor.dim() > 0);
      return tensor;
    }
    any_ = true;
    given_.push_back(tensor);
    seen_.push_back(on_host(tensor));
    return seen_.back();
  }

  void check() const {
    TORCH_CHECK(
        !(any_ && foreign_),
        operation_,
        ": expected all tensors to be on the same device, but found the accelerator and cpu");
  }

  // A kernel makes room in an output that is too small for it; the same on the device.
  void take_over_sizes() const {
    for (size_t i = 0; i < seen_.size(); ++i) {
      if (seen_[i].sizes() != given_[i].sizes()) {
        at::native::resize_(given_[i], seen_[i].sizes(), std::nullopt);
        on_host(given_[i]).copy_(seen_[i]);
      }
    }
  }

  // What a kernel returned, on the device: an argument itself, or a copy of what is new.
  at::Tensor give(const at::Tensor& result) const {
    if (!result.defined()) {
      return result;
    }
    for (size_t i = 0; i < seen_.size(); ++i) {
      if (seen_[i].is_same(result)) {
        return given_[i];
      }
    }
    for (const at::Tensor& seen : seen_) {
      TORCH_CHECK(
          result.numel() == 0 || result.storage().data() != seen.storage().data(),
          operation_,
          ": the simulated accelerator does not know this view");
    }
    auto copy = at::empty_strided(result.sizes(), result.strides(), result.options().device(the_device()));
    on_host(copy).copy_(result);
    return copy;
  }

 private:
  std::string operation_;
  std::vector<at::Tensor> given_;
  std::vector<at::Tensor> seen_;
  bool any_ = false;
  bool foreign_ = false;
};

c10::IValue host_value(const c10::IValue& value, const c10::Argument& declared, Arguments& arguments) {
  if (value.isTensor()) {
    return arguments.take(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(arguments.take(tensor));
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor.has_value() ? std::optional<at::Tensor>(arguments.take(*tensor)) : std::nullopt);
    }
    return list;
  }
  if (value.isDevice() && value.toDevice().type() == kAccelerator) {
    return c10::Device(c10::DeviceType::CPU);
  }
  const auto* optional = declared.type()->castRaw<c10::OptionalType>();
  if (value.isNone() && optional != nullptr &&
      optional->getElementType()->kind() == c10::TypeKind::GeneratorType) {
    return generator();
  }
  return value;
}

c10::IValue device_value(const c10::IValue& value, const Arguments& arguments) {
  if (value.isTensor()) {
    return arguments.give(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(arguments.give(tensor));
    }
    return list;
  }
  return value;
}

// Any operation: the kernel of the CPU on the device's memory.
void run_on_host(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  ++operations;
  const auto& schema = operation.schema();
  Arguments arguments(schema.name());
  const auto count = schema.arguments().size();
  const auto first = stack->size() - count;
  for (size_t i = 0; i < count; ++i) {
    (*stack)[first + i] = host_value((*stack)[first + i], schema.arguments()[i], arguments);
  }
  arguments.check();
  operation.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  arguments.take_over_sizes();
  const auto results = schema.returns().size();
  for (size_t i = stack->size() - results; i < stack->size(); ++i) {
    (*stack)[i] = device_value((*stack)[i], arguments);
  }
}

at::Tensor empty(
    c10::IntArrayRef size,
    std::optional<at::ScalarType> kind,
    std::optional<at::Layout>,
    std::optional<at::Device>,
    std::optional<bool> pinned,
    std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pinned.value_or(false), "only tensors of the CPU can be pinned");
  return at::detail::empty_generic(
      size, &allocator, c10::DispatchKeySet(kKey), c10::dtype_or_default(kind), format);
}

at::Tensor empty_strided(
    c10::IntArrayRef size,
    c10::IntArrayRef stride,
    std::optional<at::ScalarType> kind,
    std::optional<at::Layout>,
    std::optional<at::Device>,
    std::optional<bool> pinned) {
  TORCH_CHECK(!pinned.value_or(false), "only tensors of the CPU can be pinned");
  return at::detail::empty_strided_generic(
      size, stride, &allocator, c10::DispatchKeySet(kKey), c10::dtype_or_default(kind));
}

at::Tensor as_strided(
    const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

at::Tensor view(const at::Tensor& self, c10::IntArrayRef size) {
  return at::native::view(self, size);
}

at::Tensor reshape_alias(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}

at::Tensor unfold(const at::Tensor& self, int64_t dimension, int64_t size, int64_t step) {
  return at::native::unfold(self, dimension, size, step);
}

const at::Tensor& resize_(
    const at::Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  return at::native::resize_(self, size, format);
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool) {
  on_host(target).copy_(on_host(source));
  return target;
}

// A GPU draws the mask on the device; the CPU's kernel would draw from the CPU's generator.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  TORCH_CHECK(train.value_or(true) && p < 1, "the simulated accelerator drops out in training only");
  auto mask = at::empty_like(input, input.options().dtype(at::kBool));
  on_host(mask).bernoulli_(1 - p, generator());
  return {input.mul(mask).mul_(1 / (1 - p)), mask};
}

at::Tensor rng_state() {
  std::lock_guard<std::mutex> lock(generator().mutex());
  return generator().get_state();
}

void set_rng_state(const at::Tensor& state) {
  std::lock_guard<std::mutex> lock(generator().mutex());
  generator().set_state(state);
}

void manual_seed(int64_t seed) {
  std::lock_guard<std::mutex> lock(generator().mutex());
  generator().set_current_seed(static_cast<uint64_t>(seed));
}

int64_t count() {
  return operations.load();
}

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("unfold", unfold);
  m.impl("resize_", resize_);
  m.impl("_copy_from", copy_from);
  m.impl("native_dropout", native_dropout);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
}

TORCH_LIBRARY(recgrad_accelerator, m) {
  m.def("rng_state() -> Tensor", rng_state);
  m.def("set_rng_state(Tensor state) -> ()", set_rng_state);
  m.def("manual_seed(int seed) -> ()", manual_seed);
  m.def("count() -> int", count);
}
